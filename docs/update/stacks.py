"""Table of software stacks."""

from docs.update.request import Generator, Request, table
from simtrain.base.resources import list_stacks
from simtrain.scenario.software import load_stack

FIRST = ("megatron_2022", "megatron_core", "deepspeed_2022", "torchtitan")
WORDS = {True: "yes", False: "no", None: "profile's"}


def stacks(request: Request) -> str:
    """Return a table of all entries of all stacks."""
    names = [*FIRST, *(name for name in reversed(list_stacks()) if name not in FIRST)]
    facts = [load_stack(name).facts for name in names]
    rows = [[f"`{e}`", *(_word(e, f[e]) for f in facts)] for e in facts[0]]
    return table(["entry", *names], rows)


def _word(entry: str, value: bool | str | float | None) -> str:
    if isinstance(value, float):
        return f"{value * 1e6:g} µs" if entry == "host_issue" else f"{value:g}"
    return WORDS[value] if value is None or isinstance(value, bool) else str(value)


GENERATORS: dict[str, Generator] = {"stacks": stacks}
