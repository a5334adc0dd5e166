"""Perfetto's own format."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from simtrain.render.traces.formats.trace_format import TraceFormat

if TYPE_CHECKING:
    from simtrain.render.traces.events import TraceEvents


class Perfetto(TraceFormat):
    """Packets of protocol buffers, which the package `perfetto` defines."""

    suffixes = (".pftrace",)
    text = "Perfetto's own format, with tracks nested as node, GPU and stream"
    package = "perfetto"
    instead = "a .json.gz, which Perfetto also opens"

    def write(self, events: TraceEvents, target: IO[bytes]) -> None:
        """Write all ranks, and the critical path."""
        from simtrain.render.traces.perfetto import write_perfetto

        write_perfetto(events, target)
