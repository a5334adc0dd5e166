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
    return table(["entry", *names], [[f"`{e}`", *(_word(f[e]) for f in facts)] for e in facts[0]])


def _word(value: bool | str | float | None) -> str:
    if isinstance(value, float):
        return f"{value * 1e6:g} µs"
    return WORDS[value] if value is None or isinstance(value, bool) else str(value)


GENERATORS: dict[str, Generator] = {"stacks": stacks}
