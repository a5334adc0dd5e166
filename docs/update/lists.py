"""Tables of what simtrain comes with: resources to buy, formats of traces."""

from docs.update.request import Request, table
from simtrain.hardware.upgrades import RESOURCES
from simtrain.render.traces.formats import FORMATS


def resources(request: Request) -> str:
    """Return a table of all resources to buy."""
    rows = [[resource.label, resource.text] for resource in RESOURCES.values()]
    return table(["resource", "entries of the profile"], rows)


def trace_formats(request: Request) -> str:
    """Return a table of all formats of traces."""
    rows = [[", ".join(f"`{suffix}`" for suffix in each.suffixes), each.text] for each in FORMATS]
    return table(["file", "content"], [*rows, ["a folder (no suffix)", "a Chrome trace per rank"]])
