"""The schedule alone, as PyTorch's pipelining reads it."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from simtrain.render.traces.formats.trace_format import TraceFormat

if TYPE_CHECKING:
    from simtrain.render.traces.events import TraceEvents


class ScheduleOrder(TraceFormat):
    """A line of actions for each stage."""

    suffixes = (".csv",)
    text = "the schedule in PyTorch's format"
    has_kernels = False

    def write(self, events: TraceEvents, target: IO[bytes]) -> None:
        """Write the actions of all stages."""
        target.write(events.result.plan.schedule.to_csv().encode())
