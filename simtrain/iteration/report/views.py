"""Parts of a result that can plot themselves: `result.timeline`, `breakdown` and `memory`.

A view is the part plus a reference to its result. The functions that draw it are registered,
because their room imports this one (`base/registered.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simtrain.base.registered import registered
from simtrain.engine import Timeline
from simtrain.iteration.memory.report import MemoryReport
from simtrain.iteration.report.breakdown import Breakdown, breakdown_by_name, mean_breakdown
from simtrain.iteration.report.rows import Records, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simtrain.iteration.report.result import Result


class _View(Rows):
    """Base class of views; `_result` is the result that the view is a part of."""

    __slots__ = ()
    _result: Result

    def __new__(cls, result: Result | None = None, **fields: Any) -> Any:
        # dataclasses.replace passes the fields, without a result: it returns a plain part, because
        # a plot would show the values of the result.
        return super().__new__(cls) if result is not None else cls.__bases__[1](**fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._result,)


class TimelineView(_View, Timeline):
    """Start and end of each task of an iteration."""

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        timeline = result.iteration.timeline
        super().__init__(timeline.program, timeline.start_s, timeline.end_s)
        object.__setattr__(self, "_result", result)

    def records(self) -> Records:
        """Return a row per task, by start: stream, kind, name, start and end in seconds."""
        names = "stream", "kind", "name", "start_s", "end_s"
        return [{name: getattr(span, name) for name in names} for span in self.spans()]

    def plot(
        self,
        stages: Sequence[int] | None = None,
        window_s: tuple[float, float] | None = None,
        *,
        memory: bool = True,
    ) -> Figure:
        """Plot the tasks of each stage over time; see `simtrain.plot_timeline`."""
        figure: Figure = registered("plot_timeline")(self._result, stages, window_s, memory=memory)
        return figure


class BreakdownView(_View, Breakdown):
    """Time of an iteration by cause, averaged over the stages."""

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        super().__init__(**asdict(mean_breakdown(result.stages)))
        object.__setattr__(self, "_result", result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Breakdown) and asdict(self) == asdict(other)

    __hash__ = Breakdown.__hash__

    def records(self) -> Records:
        """Return a row per stage, with its seconds by cause."""
        stages = enumerate(self._result.stages)
        return [{"stage": stage} | breakdown_by_name(breakdown) for stage, breakdown in stages]

    def plot(self) -> Figure:
        """Plot the time of each stage by cause; see `simtrain.plot_breakdown`."""
        figure: Figure = registered("plot_breakdown")(self._result)
        return figure


class MemoryView(_View, MemoryReport):
    """Peaks of all stages of an iteration, compared with the memory of a GPU."""

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        report = result.memory_report
        super().__init__(report.capacity_bytes, report.stages, report.reserve_bytes, report.host)
        object.__setattr__(self, "_result", result)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryReport):
            return False
        return (self.capacity_bytes, self.stages) == (other.capacity_bytes, other.stages)

    __hash__ = MemoryReport.__hash__

    def records(self) -> Records:
        """Return a row per stage, with its peak in bytes by component."""
        return [
            {"stage": stage.stage, "peak_action": stage.peak_name, "peak_op": stage.peak_op}
            | {f"{name}_bytes": size for name, size in stage.components_bytes.items()}
            | {"peak_bytes": stage.peak_bytes}
            for stage in self.stages
        ]

    def plot(self) -> Figure:
        """Plot the peak of each stage, and memory over time; see `simtrain.plot_memory`."""
        figure: Figure = registered("plot_memory")(self._result)
        return figure
