"""Tables of a result, as lists of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simtrain.extras import require
from simtrain.report.breakdown import Breakdown, breakdown_by_name

if TYPE_CHECKING:
    from simtrain.engine import Timeline
    from simtrain.memory.report import MemoryReport

Records = list[dict[str, Any]]


def breakdown_rows(stages: tuple[Breakdown, ...]) -> Records:
    """Return the time by cause, one row per pipeline stage."""
    return [{"stage": stage} | breakdown_by_name(one) for stage, one in enumerate(stages)]


def memory_rows(report: MemoryReport) -> Records:
    """Return the peak memory by component, one row per pipeline stage."""
    return [
        {"stage": stage.stage, "peak_action": stage.peak_name, "peak_op": stage.peak_op}
        | {f"{name}_bytes": size for name, size in stage.components_bytes.items()}
        | {"peak_bytes": stage.peak_bytes}
        for stage in report.stages
    ]


def timeline_rows(timeline: Timeline) -> Records:
    """Return one row per task, by start: stream, kind, name, start and end in seconds."""
    names = "stream", "kind", "name", "start_s", "end_s"
    return [{name: getattr(span, name) for name in names} for span in timeline.spans()]


def frame_of(records: Records) -> Any:
    """Return records as a pandas.DataFrame.

    Raises:
        InputError: pandas is not installed (E701).
    """
    require("a frame", "pandas", instead=", or use records() or Result.to_dict()")
    import pandas

    return pandas.DataFrame(records)
