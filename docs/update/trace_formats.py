"""Table of the formats of traces."""

from docs.update.request import Generator, Request, table
from simtrain.render.traces.formats.registry import FORMATS


def trace_formats(request: Request) -> str:
    """Return a table of all formats."""
    rows = [[", ".join(f"`{suffix}`" for suffix in each.suffixes), each.text] for each in FORMATS]
    return table(["file", "content"], [*rows, ["a folder (no suffix)", "a Chrome trace per rank"]])


GENERATORS: dict[str, Generator] = {"trace_formats": trace_formats}
