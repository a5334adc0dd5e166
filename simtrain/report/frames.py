"""Tables of a result as columns, and as pandas frames for those who have pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simtrain.errors import InputError, Problem
from simtrain.report.breakdown import Breakdown, breakdown_by_name

if TYPE_CHECKING:
    from simtrain.engine import Timeline
    from simtrain.memory.report import MemoryReport

Columns = dict[str, list[Any]]


def breakdown_columns(stages: tuple[Breakdown, ...]) -> Columns:
    """Seconds by cause, one row per pipeline stage."""
    rows = [{"stage": stage} | breakdown_by_name(one) for stage, one in enumerate(stages)]
    return _columns(rows)


def memory_columns(report: MemoryReport) -> Columns:
    """Bytes by component at each stage's peak, one row per pipeline stage."""
    rows = [
        {"stage": stage.stage, "peak_action": stage.peak_name, "peak_op": stage.peak_op}
        | {f"{name}_bytes": size for name, size in stage.components_bytes.items()}
        | {"peak_bytes": stage.peak_bytes}
        for stage in report.stages
    ]
    return _columns(rows)


def timeline_columns(timeline: Timeline) -> Columns:
    """One row per task, by start: stream, kind, name, start and end in seconds."""
    names = "stream", "kind", "name", "start_s", "end_s"
    return _columns([{name: getattr(span, name) for name in names} for span in timeline.spans()])


def frame(columns: Columns) -> Any:
    """The columns as a pandas.DataFrame.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError:
        fix = "pip install pandas, or take the same numbers from Result.to_dict()"
        raise InputError([Problem("E506", "pandas is not installed", fix=fix)]) from None
    return pandas.DataFrame(columns)


def _columns(rows: list[dict[str, Any]]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]}
