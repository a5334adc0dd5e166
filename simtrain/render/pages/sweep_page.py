"""Summary of a sweep and answers to queries, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simtrain.base.strict_yaml import as_scalar
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.render.pages.tables import table_of
from simtrain.scenario import REASONS
from simtrain.studies.cost.of_tokens import COST_COLUMNS
from simtrain.studies.sweep.axes import describe_point
from simtrain.studies.sweep.counts import BestPoint
from simtrain.studies.sweep.folder import SweepFolder
from simtrain.studies.sweep.plan import Plan
from simtrain.studies.sweep.query import Answer
from simtrain.studies.sweep.run import Progress, Shard
from simtrain.units import counted, format_bytes, format_seconds, four_digits

_MAX_ROWS = 40
_GAP = 2
"""Spaces between columns of an answer."""


def summary_json(
    plan: Plan, folder: SweepFolder, shard: Shard, progress: Progress
) -> dict[str, Any]:
    """The summary as JSON, in full precision."""
    counts, best = progress.counts, progress.counts.best
    # Order of keys: the index, the point, then its results.
    point = {"index": best.index, "point": plan.cells(best.index)} if best else {}
    return {
        "name": plan.name,
        "out": str(folder.path),
        "shard": str(shard),
        "num_parts": progress.num_parts,
        "num_parts_found": progress.found,
        "damaged_parts": list(progress.damaged),
        "num_parts_lost_with_workers": progress.num_lost,
        "num_points": progress.num_points,
        "num_rows": counts.num_rows,
        "ok": counts.ok,
        "does_not_fit": counts.does_not_fit,
        "illegal": dict(counts.illegal),
        "excluded": {plan.constraints[one]: count for one, count in counts.excluded.items()},
        "best": point | asdict(best) if best else None,
    }


def summary_page(plan: Plan, folder: SweepFolder, shard: Shard, progress: Progress) -> Group:
    """The summary as text."""
    rows = ((f"{number:,}", words) for number, words in _lines(plan, progress))
    table = table_of(">", "", rows=rows, box=None, show_header=False, pad_edge=False)
    shared = f", shard {shard}" if shard.count > 1 else ""
    points, parts = counted(progress.num_points, "point"), counted(progress.num_parts, "part")
    head = f"{plan.name}{shared}: {points} in {parts}"
    return Group(Text(head), table, *map(Text, _remarks(plan, folder, progress)))


def _lines(plan: Plan, progress: Progress) -> Iterator[tuple[int, str]]:
    counts = progress.counts
    yield counts.ok, "ok"
    yield counts.does_not_fit, "do not fit in memory"
    for code, number in counts.illegal.items():
        reason = f": {REASONS[code]}" if code in REASONS else ""
        yield number, f"illegal, {code}{reason}"
    for constraint, number in counts.excluded.items():
        yield number, f"excluded by {plan.constraints[constraint]}"


def _remarks(plan: Plan, folder: SweepFolder, progress: Progress) -> Iterator[str]:
    if best := progress.counts.best:
        yield f"{best_words(best)} ({describe_point(plan.cells(best.index))})"
        yield from mfu_remarks([plan.scenario(best.index)])
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
    if best.objective in ("tokens_per_s", "iteration_time_s", "mfu"):
        return f"best {best.objective}: {figures}"
    return f"best {best.objective}: {_figure(best.objective, best.value)}, at {figures}"


def _figure(column: str, value: float) -> str:
    """Format a value of a result column."""
    if column.endswith("_bytes"):
        return format_bytes(value)
    if column.endswith("_s"):
        return format_seconds(value)
    if column in COST_COLUMNS:
        return four_digits(value)
    return f"{value:.1%}" if column == "hfu" else f"{value:,}"


def answer_page(answer: Answer, width: int | None = None) -> Group:
    """The rows of an answer as a table, cut after the first rows.

    Columns beyond `width` follow in further tables.
    """
    cells = [[_shown(value) for value in row] for row in answer.rows[:_MAX_ROWS]]
    widths = [max(map(cell_len, column)) for column in zip(answer.columns, *cells, strict=True)]
    tables: list[RenderableType] = []
    for group in _groups(widths, width):
        table = Table(box=None, pad_edge=False)
        for number in group:
            is_number = any(isinstance(row[number], (int, float)) for row in answer.rows)
            justify: Literal["left", "right"] = "right" if is_number else "left"
            table.add_column(Text(answer.columns[number]), justify=justify, no_wrap=True)
        for row in cells:
            table.add_row(*(Text(row[number]) for number in group))
        tables += [table, ""]
    hidden = len(answer.rows) - _MAX_ROWS
    more = f"and {hidden:,} more rows: --csv and --json print them all"
    return Group(*tables[:-1], *[Text(more)] * (hidden > 0))


def _groups(widths: Sequence[int], width: int | None) -> Iterator[list[int]]:
    """Yield the numbers of consecutive columns that fit a width together, at least one each."""
    group: list[int] = []
    used = 0
    for number, needed in enumerate(widths):
        if group and width is not None and used + needed > width:
            yield group
            group, used = [], 0
        group.append(number)
        used += needed + _GAP
    yield group


def _shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return as_scalar(value)
        case float():
            return f"{value:.6g}"
    return str(value)
