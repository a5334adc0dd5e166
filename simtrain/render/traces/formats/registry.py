"""All formats of traces. A new one is a class in a file of its own and a place here."""

from __future__ import annotations

from pathlib import Path

from simtrain.base.plug_ins import Parts
from simtrain.render.traces.formats.chrome import Chrome
from simtrain.render.traces.formats.perfetto import Perfetto
from simtrain.render.traces.formats.schedule import ScheduleOrder
from simtrain.render.traces.formats.trace_format import TraceFormat

_HOUSE: tuple[TraceFormat, ...] = (Perfetto(), Chrome(), ScheduleOrder())
_BY_SUFFIX = Parts[TraceFormat](
    "trace_formats", TraceFormat, _HOUSE, name_of=lambda each: each.suffixes[0]
)
FORMATS: tuple[TraceFormat, ...] = tuple(_BY_SUFFIX.values())
SUFFIXES = tuple(suffix for each in FORMATS for suffix in each.suffixes)


def format_of(file: Path) -> TraceFormat | None:
    """Return the format of a file by its name; None for a folder, which has no suffix."""
    name = file.name.lower() if file.suffix else ""
    return next((each for each in FORMATS if name.endswith(each.suffixes)), None)
