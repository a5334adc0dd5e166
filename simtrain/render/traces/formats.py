"""Formats of traces: suffixes, what a file has, and what writes it.

`--help` lists them, so that only their functions import what writes a trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from simtrain.render.traces.events import TraceEvents


def _perfetto(events: TraceEvents, target: IO[bytes]) -> None:
    from simtrain.render.traces.perfetto import write_perfetto

    write_perfetto(events, target)


def _chrome(events: TraceEvents, target: IO[bytes]) -> None:
    from simtrain.render.traces.chrome import write_chrome

    write_chrome(events, range(events.result.num_stages), target, critical_path=True)


def _schedule(events: TraceEvents, target: IO[bytes]) -> None:
    target.write(events.result.plan.schedule.to_csv().encode())


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format of traces.

    Args:
        suffixes: ends of names of its files, in lower case; a file that ends with .gz is packed.
        text: what its files have.
        write: writes all simulated ranks.
        has_kernels: whether it can show the kernels of chosen passes.
        package: an optional package that it needs.
        instead: what to write without the package.
    """

    suffixes: tuple[str, ...]
    text: str
    write: Callable[[TraceEvents, IO[bytes]], None]
    has_kernels: bool = True
    package: str = ""
    instead: str = ""


FORMATS = (
    TraceFormat(
        (".pftrace",),
        "Perfetto's own format, with tracks nested as node, GPU and stream",
        _perfetto,
        package="perfetto",
        instead="a .json.gz, which Perfetto also opens",
    ),
    TraceFormat((".json.gz", ".json"), "a Chrome trace, as PyTorch's profiler writes it", _chrome),
    TraceFormat((".csv",), "the schedule in PyTorch's format", _schedule, has_kernels=False),
)
SUFFIXES = tuple(suffix for each in FORMATS for suffix in each.suffixes)


def format_of(file: Path) -> TraceFormat | None:
    """Return the format of a file by its name; None for a folder, which has no suffix."""
    name = file.name.lower() if file.suffix else ""
    return next((each for each in FORMATS if name.endswith(each.suffixes)), None)
