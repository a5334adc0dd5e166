"""The summary of a sweep, and answers to queries: `simtrain sweep`, `simtrain query`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.strict_yaml import as_scalar
from simtrain.hardware.interval import Interval
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.scenario import REASONS
from simtrain.studies.cost import COST_COLUMNS
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.sweep.axes import describe_point
from simtrain.studies.sweep.counts import BestPoint
from simtrain.studies.sweep.folder import SweepFolder
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.query import Answer
from simtrain.studies.sweep.run import Progress
from simtrain.studies.sweep.workers import Shard
from simtrain.units import counted, format_bytes, format_seconds, four_digits
from simtrain.views.kinds import COUNT, TEXT, Kind
from simtrain.views.view import Cell, Column, Paragraphs, Row, Table, View

_MAX_ROWS = 40


@dataclass(frozen=True, slots=True)
class Summary(PlainData):
    """What a sweep computed.

    Args:
        plan: the sweep.
        folder: its results.
        shard: the share of its parts that was computed.
        progress: counts of parts and points.
    """

    json_fields: ClassVar = keys(
        """name=plan.name out=folder.path shard=shard_text num_parts=progress.num_parts
        num_parts_found=progress.found damaged_parts=progress.damaged
        num_parts_lost_with_workers=progress.num_lost num_points=progress.num_points
        num_rows=progress.counts.num_rows ok=progress.counts.ok
        does_not_fit=progress.counts.does_not_fit illegal=progress.counts.illegal excluded
        best interval_s=interval"""
    )

    plan: SweepPlan
    folder: SweepFolder
    shard: Shard
    progress: Progress

    @property
    def shard_text(self) -> str:
        """The shard as --shard has it."""
        return str(self.shard)

    @property
    def excluded(self) -> dict[str, int]:
        """Number of points that each constraint excludes."""
        excluded = self.progress.counts.excluded
        return {self.plan.constraints[place]: number for place, number in excluded.items()}

    @property
    def best(self) -> dict[str, Any] | None:
        """The index, the axes and the results of the best point."""
        best = self.progress.counts.best
        if best is None:
            return None
        return {"index": best.index, "point": self.plan.cells(best.index)} | asdict(best)

    @property
    def interval(self) -> Interval | None:
        """Where the measured iteration time of the best point lies."""
        best = self.progress.counts.best
        if best is None:
            return None
        return Evaluator().interval(self.plan.scenario(best.index), best.iteration_time_s)


def summary_view(summary: Summary) -> View:
    """The summary: how many points there are of each kind, the best, and where results are."""
    plan, shard, progress = summary.plan, summary.shard, summary.progress
    shared = f", shard {shard}" if shard.count > 1 else ""
    points, parts = counted(progress.num_points, "point"), counted(progress.num_parts, "part")
    head = f"{plan.name}{shared}: {points} in {parts}"
    columns = Column("num_points", "", COUNT), Column("kind", "", TEXT)
    rows = [Row(line) for line in _lines(plan, progress)]
    counts = Table("counts", "", columns, rows, layout="list")
    said = [*_remarks(summary)]
    return View([Paragraphs([head], style=None), counts, Paragraphs(said, style=None)])


def _lines(plan: SweepPlan, progress: Progress) -> Iterator[tuple[int, str]]:
    counts = progress.counts
    yield counts.ok, "ok"
    yield counts.does_not_fit, "do not fit in memory"
    for code, number in counts.illegal.items():
        reason = f": {REASONS[code]}" if code in REASONS else ""
        yield number, f"illegal, {code}{reason}"
    for constraint, number in counts.excluded.items():
        yield number, f"excluded by {plan.constraints[constraint]}"


def _remarks(summary: Summary) -> Iterator[str]:
    plan, folder, progress = summary.plan, summary.folder, summary.progress
    if best := progress.counts.best:
        yield f"{best_words(best)} ({describe_point(plan.cells(best.index))})"
        yield from mfu_remarks([plan.scenario(best.index)])
    if summary.interval:
        yield summary.interval.sentence
    if progress.found:
        yield f"{counted(progress.found, 'part')} found on disk"
    if progress.damaged:
        numbers = ", ".join(map(str, progress.damaged))
        yield f"recomputed {counted(len(progress.damaged), 'damaged part')} ({numbers})"
    if progress.num_lost:
        yield f"recomputed {counted(progress.num_lost, 'part')} lost with workers that died"
    yield f"Results are in {folder.path}. Query them with:"
    yield f'  simtrain query {folder.path} "select * from results limit 5"'


def best_words(best: BestPoint) -> str:
    """Describe the best point in one line, including the objective."""
    time = format_seconds(best.iteration_time_s)
    figures = f"{best.tokens_per_s:,.0f} tokens/s, {time}, MFU {best.mfu:.1%}"
    if hasattr(best, best.objective):
        return f"best {best.objective}: {figures}"
    return f"best {best.objective}: {_figure(best.objective, best.value)}, at {figures}"


def _figure(column: str, value: float) -> str:
    """Format a value of a result column."""
    objective = next((each for each in OBJECTIVES.values() if each.field == column), None)
    if objective:
        return objective.words(-value if objective.is_maximised else value)
    if column.endswith("_bytes"):
        return format_bytes(value)
    if column.endswith("_s"):
        return format_seconds(value)
    if column in COST_COLUMNS:
        return four_digits(value)
    return f"{value:.1%}" if column == "hfu" else f"{value:,}"


def answer_view(answer: Answer) -> View:
    """The first rows of an answer; CSV and JSON have them all."""
    columns = [
        Column(name, name, _NUMBERS if _has_numbers(answer, place) else _TEXTS)
        for place, name in enumerate(answer.columns)
    ]
    missing = Cell(None, "-")
    rows = [
        Row([missing if value is None else value for value in row])
        for row in answer.rows[:_MAX_ROWS]
    ]
    table = Table("answer", "", columns, rows, layout="continued", data=answer.records())
    hidden = len(answer.rows) - _MAX_ROWS
    more = f"and {hidden:,} more rows: --csv and --json print them all"
    return View([table, Paragraphs([more] * (hidden > 0), style=None)])


def _has_numbers(answer: Answer, place: int) -> bool:
    return any(isinstance(row[place], (int, float)) for row in answer.rows)


def _shown(value: Any) -> str:
    match value:
        case bool():
            return as_scalar(value)
        case float():
            return f"{value:.6g}"
    return str(value)


_NUMBERS, _TEXTS = Kind(_shown), Kind(_shown, is_number=False)
