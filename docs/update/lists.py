"""Tables of what simtrain comes with: software stacks, resources to buy, formats of traces."""

from collections.abc import Sequence

from docs.update.request import Request, table
from simtrain.base.resources import list_stacks
from simtrain.hardware.upgrades import RESOURCES
from simtrain.render.traces.formats import FORMATS
from simtrain.scenario.software import load_stack

FIRST_STACKS = ("megatron_2022", "megatron_core", "deepspeed_2022", "torchtitan")
WORDS = {True: "yes", False: "no", None: "profile's"}


def stacks(request: Request) -> str:
    """Return a table of all entries of all software stacks."""
    others = (name for name in reversed(list_stacks()) if name not in FIRST_STACKS)
    names = [*FIRST_STACKS, *others]
    facts = [load_stack(name).facts for name in names]
    rows = [[f"`{e}`", *(_word(e, f[e]) for f in facts)] for e in facts[0]]
    return table(["entry", *names], rows)


def _word(entry: str, value: bool | str | float | Sequence[str] | None) -> str:
    if isinstance(value, float):
        return f"{value * 1e6:g} µs" if entry.startswith("host_") else f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(value) or "none"
    return WORDS[value] if value is None or isinstance(value, bool) else str(value)


def resources(request: Request) -> str:
    """Return a table of all resources to buy."""
    rows = [[resource.label, resource.text] for resource in RESOURCES.values()]
    return table(["resource", "entries of the profile"], rows)


def trace_formats(request: Request) -> str:
    """Return a table of all formats of traces."""
    rows = [[", ".join(f"`{suffix}`" for suffix in each.suffixes), each.text] for each in FORMATS]
    return table(["file", "content"], [*rows, ["a folder (no suffix)", "a Chrome trace per rank"]])
