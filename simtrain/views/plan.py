"""A plan of a training run, a row per cluster and number of GPUs: `simtrain plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simtrain.hardware.evidence import sentences_of
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.studies.planning.layout import Status
from simtrain.studies.planning.result import Miss, PlanRow, TrainingPlan
from simtrain.studies.search.layout_words import in_short
from simtrain.studies.search.search_end import End
from simtrain.studies.search.space import Point
from simtrain.studies.variation.draws import draws_in_words
from simtrain.units import DAY_S, counted
from simtrain.views.cost import cost_remarks
from simtrain.views.kinds import (
    AMOUNT,
    BYTES,
    NUMBER,
    SECONDS,
    SHARE,
    TEXT,
    Kind,
    amount,
    short_interval,
)
from simtrain.views.view import (
    Cell,
    Column,
    Facts,
    Heading,
    Part,
    Row,
    Table,
    Verdict,
    View,
    remarks,
    value_of,
)

_MWH_J = 3.6e9
_DAYS = Kind(lambda time_s: amount(time_s / DAY_S))
_INTERVALS = "time_interval_s", "price_interval"
_DAYS_INTERVAL = Kind(lambda ends: short_interval(ends, DAY_S))
_PRICE_INTERVAL = Kind(short_interval)
_MWH = Kind(lambda energy_j: amount(energy_j / _MWH_J))
_OPTIONAL = (
    "peak_bytes",
    "mfu",
    "gpu_hours",
    "iteration_time_s",
    "node_energy_j",
    "split",
    "price_interval",
)
"""Columns that a narrow terminal omits, the least important first."""
_MISSES: dict[Miss, str] = {
    "days": "too long",
    "budget": "over budget",
    "no price": "no price",
}
_ABOUT: dict[Miss, str] = {"days": "about on time", "budget": "about on budget"}


def plan_view(plan: TrainingPlan, out: Path | None = None, details: bool = False) -> View:
    """Show a plan: the best rows, a row per cluster and number of GPUs, and whether limits are met.

    Args:
        plan: the plan.
        out: folder of the scenario files; None if they were not written.
        details: also say what predictions and prices rest on.
    """
    currency = _currency(plan)
    columns = (
        Column("cluster", "cluster", NUMBER),
        Column("num_gpus", "GPUs", NUMBER),
        Column("split", "tensor x\npipeline\nx data", TEXT),
        Column("iteration_time_s", "iteration", SECONDS),
        Column("mfu", "MFU", SHARE),
        Column("peak_bytes", "peak", BYTES, "of the fullest stage"),
        Column("time_s", "days", _DAYS, "of training, with the goodput"),
        Column("time_interval_s", "90 %\ninterval", _DAYS_INTERVAL, "of the days of training"),
        Column("gpu_hours", "GPU-\nhours", AMOUNT),
        Column("price", f"price,\n{currency}" if currency else "price", AMOUNT),
        Column("price_interval", "90 %\ninterval", _PRICE_INTERVAL, "of the price"),
        Column("node_energy_j", "energy\nof nodes,\nMWh", _MWH, "at most"),
        *_site_columns(plan),
        Column("remark", "", TEXT),
    )
    rows = [
        Row(_cells(row, plan, columns), None if row.meets_limits else "soft") for row in plan.rows
    ]
    data = [_record(row, columns) for row in rows]
    table = Table("plan", "", columns, rows, optional=_OPTIONAL, data=data)
    parts: list[Part] = [Heading(_title(plan)), Facts([*_answers(plan)]), table]
    parts.append(remarks(_notes(plan, out)))
    if details:
        parts += [Heading("Details", is_rule=True), remarks(_details(plan))]
    return View([*parts, _verdict(plan)])


def _site_columns(plan: TrainingPlan) -> Iterator[Column]:
    """Yield the columns of a plan that counts the energy of the site."""
    priced = [cost for cost in plan.costs if cost.electricity_cost is not None]
    if priced:
        heading = f"elec-\ntricity,\n{priced[0].electricity_currency}"
        yield Column("electricity_cost", heading, AMOUNT, "at most")
    if any(cost.co2_t is not None for cost in plan.costs):
        yield Column("co2_t", "CO2,\ntonnes", AMOUNT, "at most")


def _title(plan: TrainingPlan) -> str:
    goodput = "" if plan.goodput == 1 else f", goodput {plan.goodput}"
    limits = _limits(plan)
    within = f", within {limits}" if limits else ""
    return f"{plan.scenario}: {plan.num_tokens:,} tokens{goodput}{within}"


def _limits(plan: TrainingPlan) -> str:
    """Format the limits: "30 days and 2,000,000 USD"."""
    days, budget = plan.limits.days, plan.limits.budget
    currency = (budget.currency if budget else None) or _currency(plan) or ""
    parts = [f"{days:g} days"] if days else []
    parts += [f"{amount(budget.amount)} {currency}".strip()] if budget else []
    return " and ".join(parts)


def _currency(plan: TrainingPlan) -> str | None:
    return next((cost.currency for cost in plan.costs if cost.currency), None)


def _cells(row: PlanRow, plan: TrainingPlan, columns: Sequence[Column]) -> list[Any]:
    best, cost = row.best, row.cost
    known: dict[str, Any] = {"cluster": row.cluster, "num_gpus": row.num_gpus}
    if best is None or cost is None:
        known["remark"] = row.layout.status.value
    else:
        split = best.scenario.parallelism
        known |= {
            "split": f"{split.tensor}x{split.pipeline}x{split.data}",
            "mfu": best.run.mfu,
            "peak_bytes": best.evaluation.peak_bytes,
            "remark": _mark(row, plan),
        }
    cells = (known.get(column.name, getattr(cost, column.name, None)) for column in columns)
    return [Cell(None, "-") if cell is None else cell for cell in cells]


def _record(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    """Return the values of a row, an interval as two."""
    record: dict[str, Any] = {}
    for column, cell in zip(columns, row.cells, strict=True):
        value = value_of(cell)
        if column.name in _INTERVALS:
            ends = value or {"p5": None, "p95": None}
            record |= {f"{column.name}_{name}": end for name, end in ends.items()}
        else:
            record[column.name] = value
    return record


def _mark(row: PlanRow, plan: TrainingPlan) -> str:
    marks = [_MISSES[miss] for miss in row.misses]
    marks += [] if marks else [_ABOUT[limit] for limit in row.about]
    marks += ["fastest"] if row is plan.fastest else []
    marks += ["cheapest"] if row is plan.cheapest else []
    return ", ".join(marks)


def _doubt(row: PlanRow, plan: TrainingPlan) -> str:
    """Name the clusters with stronger evidence than the best row's, if there are any."""
    names = dict.fromkeys(cost.cluster for cost in plan.stronger_than(row))
    level = row.cost.evidence.level.value if row.cost else ""
    return f". Its evidence ({level}) is weaker than that of {', '.join(names)}" if names else ""


def _answers(plan: TrainingPlan) -> Iterator[tuple[str, str | Cell]]:
    """Yield the fastest and the cheapest row that meet the limits."""
    if plan.fastest and plan.fastest.cost:
        yield "Fastest", Cell(plan.fastest.cost.time_s, _answer(plan.fastest, plan))
    if plan.cheapest and plan.cheapest.cost and plan.cheapest is not plan.fastest:
        yield "Cheapest", Cell(plan.cheapest.cost.price, _answer(plan.cheapest, plan))
    first = plan.rows[0]
    if plan.fastest is None and first.cost:
        yield "Best, but misses the limits", Cell(first.cost.time_s, _answer(first, plan))


def _answer(row: PlanRow, plan: TrainingPlan) -> str:
    """Return days and price of a row with their intervals, its layout, and doubts."""
    cost = row.cost
    assert cost is not None, "a row that meets the limits has a cost"
    figures = f"{_DAYS.text(cost.time_s)} days ({_DAYS_INTERVAL.text(cost.time_interval_s)})"
    if cost.price is not None and cost.price_interval is not None:
        ends = _PRICE_INTERVAL.text(cost.price_interval)
        figures += f", {amount(cost.price)} {cost.currency} ({ends})"
    return f"{figures}: {_row(row)}{_doubt(row, plan)}"


def _notes(plan: TrainingPlan, out: Path | None) -> Iterator[str]:
    if plan.costs:
        yield "The 90 % intervals are those of the iteration time."
    yield from sentences_of(cost.evidence for cost in plan.costs if cost.evidence.is_weak)
    yield from draws_in_words(plan.draws)
    yield from _doubtful_fits(plan)
    yield from _reasons(plan)
    for cluster, num_nodes in plan.added_nodes.items():
        yield (
            f"{cluster}: planned with {num_nodes} nodes for --gpus; the profile has fewer "
            "(hardware.cluster.num_nodes)."
        )
    if plan.shared_overrides:
        yield "The scenario's hardware overrides apply to every cluster."
    if any(cost.price is None for cost in plan.costs):
        yield "A row without a price meets no budget."
    if out is not None:
        yield f"Scenario files are in {out}."
    yield f"{_certainty(plan)} More: --details."


def _details(plan: TrainingPlan) -> Iterator[str]:
    """Yield what predictions and prices rest on."""
    yield from sentences_of(cost.evidence for cost in plan.costs if not cost.evidence.is_weak)
    for row in plan.rows:
        if row.cost:
            cost = row.cost
            yield f"{cost.cluster}, {counted(cost.num_gpus, 'GPU')}: {cost.interval.sentence}"
    yield from mfu_remarks(row.best.scenario for row in plan.rows if row.best)
    yield from cost_remarks(plan.costs)
    yield "To write each layout as a scenario file, add: --out FOLDER"


def _doubtful_fits(plan: TrainingPlan) -> Iterator[str]:
    """Name the layouts that may not fit, with their probabilities."""
    names = [
        f"{row.cluster} x {row.num_gpus} (fits with {fit.probability:.0%})"
        for row, fit in ((row, row.best.evaluation.fit) for row in plan.rows if row.best)
        if not fit.fits_surely
    ]
    if names:
        yield f"May not fit: {', '.join(names)}."


def _reasons(plan: TrainingPlan) -> Iterator[str]:
    """Yield why rows have no layout; rows with the same reason share a note."""
    rows: dict[str, list[str]] = {}
    for row in plan.rows:
        if row.layout.problems:
            rows.setdefault(_problem(row), []).append(f"{row.cluster} x {row.num_gpus}")
    for problem, names in rows.items():
        yield f"{', '.join(names)}: {problem}."


def _row(row: PlanRow) -> str:
    layout = in_short(Point.of(row.best.evaluation.scenario)) if row.best else "no layout"
    return f"{counted(row.num_gpus, 'GPU')} of {row.cluster}, tensor x pipeline x data {layout}"


def _problem(row: PlanRow) -> str:
    problem = row.layout.problems[0]
    reason = problem.reason.replace("\n   ", ";") if problem.reason else ""
    return f"{problem.code} {problem.message}" + (f"; {reason}" if reason else "")


def _certainty(plan: TrainingPlan) -> str:
    """Say whether the layouts are proved to be the fastest, and else how close they are."""
    if not plan.stopped and any(row.layout.end is End.FOUND_DRAWN for row in plan.rows):
        return (
            "Best of the layouts drawn. Bounds that drawn times hardly ever fall below rule out "
            "the others, which is no proof."
        )
    if not plan.stopped:
        return "Exact: no legal layout that surely fits is faster than that of its row."
    statuses = Counter(row.layout.status for row in plan.rows)
    gaps = [row.layout.gap for row in plan.rows if row.best and not row.layout.exact]
    bounded = [gap for gap in gaps if gap is not None]
    num_exact, num_unproved = len(plan.costs) - len(gaps), len(gaps) - len(bounded)
    num_missing = statuses[Status.NOT_SEARCHED] + statuses[Status.NOT_FOUND]
    parts = [f"{num_exact} proved to be the fastest"] if num_exact else []
    if bounded:
        parts.append(f"{len(bounded)} at most {100 * max(bounded):.3g} % slower than the fastest")
    if num_unproved:
        parts.append(f"{num_unproved} the best so far")
    parts += [f"{num_missing} not found yet"] if num_missing else []
    return f"The searches ended early: of the layouts, {', '.join(parts)}. Longer --seconds help."


def _verdict(plan: TrainingPlan) -> Verdict:
    limits = _limits(plan)
    num_met = sum(row.meets_limits for row in plan.rows)
    if not limits:
        return Verdict(True, f"{len(plan.costs)} of {len(plan.rows)} combinations have a layout")
    met = f"{num_met} of {len(plan.rows)} combinations meet {limits}"
    return Verdict(num_met > 0, met, "MISSED")
