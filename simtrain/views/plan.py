"""A plan of a training run, a row per cluster and number of GPUs: `simtrain search --tokens`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from simtrain.hardware.evidence import sentences_of
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.studies.planning import PlanRow, Status, TrainingPlan
from simtrain.studies.search.space import Point, in_short
from simtrain.units import DAY_S, counted, short_interval
from simtrain.views.cost import cost_remarks
from simtrain.views.kinds import AMOUNT, BYTES, NUMBER, SECONDS, SHARE, TEXT, Kind, amount
from simtrain.views.view import (
    Cell,
    Column,
    Facts,
    Heading,
    Headline,
    Part,
    Row,
    Table,
    View,
    remarks,
)

_MWH_J = 3.6e9
_DAYS = Kind(lambda time_s: amount(time_s / DAY_S))
_DAYS_INTERVAL = Kind(lambda ends: short_interval(ends, DAY_S))
_PRICE_INTERVAL = Kind(short_interval)
_MWH = Kind(lambda energy_j: amount(energy_j / _MWH_J))
_NARROW = (
    *("peak_bytes", "mfu", "gpu_hours", "iteration_time_s"),
    *("node_energy_j", "split", "price_interval"),
)
"""Columns that a narrow terminal omits, the least important first."""
_MISSES = {"days": "too long", "budget": "over budget", "no price": "no price"}


def plan_view(plan: TrainingPlan, details: bool = False) -> View:
    """Show a plan: the best rows, a row per cluster and number of GPUs, and whether limits are met.

    With `details`, also say what predictions and prices rest on.
    """
    columns, records = _columns(plan), [_record(row, plan) for row in plan.rows]
    rows = [
        Row(
            [Cell(None, "-") if record.get(c.name) is None else record[c.name] for c in columns],
            None if row.meets_limits else "soft",
        )
        for row, record in zip(plan.rows, records, strict=True)
    ]
    data = [
        {name: value for column in columns for name, value in _values(column, record)}
        for record in records
    ]
    goodput = "" if plan.goodput == 1 else f", goodput {plan.goodput}"
    limits = _limits(plan)
    within = f", within {limits}" if limits else ""
    parts: list[Part] = [
        Heading(f"{plan.scenario}: {plan.num_tokens:,} tokens{goodput}{within}"),
        Facts([*_answers(plan)]),
        Table("plan", "", columns, rows, optional=_NARROW, data=data),
        remarks(_notes(plan, details)),
    ]
    if details:
        parts += [Heading("Details", is_rule=True), remarks(_details(plan))]
    num_met = sum(row.meets_limits for row in plan.rows)
    met = f"{num_met} of {len(plan.rows)} combinations meet {limits}"
    if not limits:
        met = f"{len(plan.costs)} of {len(plan.rows)} combinations have a layout"
    is_met = num_met > 0 or not limits
    words = f"{plan.headline}; {met}" if num_met else f"MISSED: {met}"
    return View([*parts, Headline(words, "good" if is_met else "bad")])


def _columns(plan: TrainingPlan) -> list[Column]:
    return [
        Column("cluster", "cluster", NUMBER),
        Column("num_gpus", "GPUs", NUMBER),
        Column("split", "tensor x\npipeline\nx data", TEXT),
        Column("iteration_time_s", "iteration", SECONDS),
        Column("mfu", "MFU", SHARE),
        Column("peak_bytes", "peak", BYTES, "of the fullest stage"),
        Column("time_s", "days", _DAYS, "of training, with the goodput"),
        Column("time_interval_s", "90 %\ninterval", _DAYS_INTERVAL, "of the days of training"),
        Column("gpu_hours", "GPU-\nhours", AMOUNT),
        Column("price", f"price,\n{_currency(plan)}".strip(",\n"), AMOUNT),
        Column("price_interval", "90 %\ninterval", _PRICE_INTERVAL, "of the price"),
        Column("node_energy_j", "energy\nof nodes,\nMWh", _MWH, "at most"),
        Column("remark", "", TEXT),
    ]


def _record(row: PlanRow, plan: TrainingPlan) -> dict[str, Any]:
    """Return the values of a row by column; those of a cost are its attributes."""
    record: dict[str, Any] = {"cluster": row.cluster, "num_gpus": row.num_gpus}
    if row.best is None or row.cost is None:
        return record | {"remark": row.status.value}
    split = row.best.scenario.parallelism
    marks = [_MISSES[miss] for miss in row.misses]
    marks += ["fastest"] * (row is plan.fastest) + ["cheapest"] * (row is plan.cheapest)
    of_cost = (column.name for column in _columns(plan) if hasattr(row.cost, column.name))
    return {name: getattr(row.cost, name) for name in of_cost} | {
        "split": f"{split.tensor}x{split.pipeline}x{split.data}",
        "mfu": row.best.run.mfu,
        "peak_bytes": row.best.evaluation.peak_bytes,
        "remark": ", ".join(marks),
    }


def _values(column: Column, record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    value = record.get(column.name)
    if column.kind not in (_DAYS_INTERVAL, _PRICE_INTERVAL):
        yield column.name, value
    else:
        yield from ((f"{column.name}_{end}", value and value[end]) for end in ("p5", "p95"))


def _limits(plan: TrainingPlan) -> str:
    """Format the limits: "30 days and 2,000,000 USD"."""
    days, budget = plan.limits.days, plan.limits.budget
    parts = [f"{days:g} days"] if days else []
    if budget:
        parts.append(f"{amount(budget.amount)} {budget.currency or _currency(plan)}".strip())
    return " and ".join(parts)


def _currency(plan: TrainingPlan) -> str:
    return next((cost.currency for cost in plan.costs if cost.currency), "")


def _answers(plan: TrainingPlan) -> Iterator[tuple[str, str | Cell]]:
    fastest, cheapest = plan.fastest, plan.cheapest
    if fastest and fastest.cost:
        yield "Fastest", Cell(fastest.cost.time_s, _answer(fastest))
    if cheapest and cheapest.cost and cheapest is not fastest:
        yield "Cheapest", Cell(cheapest.cost.price, _answer(cheapest))
    first = plan.rows[0]
    if fastest is None and first.cost:
        yield "Best, but misses the limits", Cell(first.cost.time_s, _answer(first))


def _answer(row: PlanRow) -> str:
    assert row.best is not None, "a row that meets the limits has a layout"
    layout = in_short(Point.of(row.best.evaluation.scenario))
    return f"{row}, tensor x pipeline x data {layout}"


def _notes(plan: TrainingPlan, details: bool) -> Iterator[str]:
    if plan.costs:
        failures = " and of failures" if plan.goodput == "auto" else ""
        yield f"The 90 % intervals are those of the iteration time{failures}."
    yield from sentences_of(cost.evidence for cost in plan.costs if cost.evidence.is_weak)
    fits = {f"{row.cluster} x {row.num_gpus}": row.best.fit for row in plan.rows if row.best}
    unsure = {name: fit.probability for name, fit in fits.items() if not fit.fits_surely}
    if unsure:
        names = [f"{name} (fits with {share:.0%})" for name, share in unsure.items()]
        yield f"May not fit: {', '.join(names)}."
    yield from (f"{name}: {fit.doubt}." for name, fit in fits.items() if fit.errors.basis)
    rows: dict[str, list[str]] = {}
    for row in plan.rows:
        for problem in row.errors[:1]:
            reason = f"; {problem.reason}".replace("\n   ", ";") if problem.reason else ""
            text = f"{problem.code} {problem.message}{reason}"
            rows.setdefault(text, []).append(f"{row.cluster} x {row.num_gpus}")
    yield from (f"{', '.join(names)}: {text}." for text, names in rows.items())
    for cluster, num_nodes in plan.added_nodes.items():
        yield (
            f"{cluster}: planned with {num_nodes} nodes for --gpus; the profile has fewer "
            "(hardware.cluster.num_nodes)."
        )
    if plan.limits.budget and any(cost.price is None for cost in plan.costs):
        yield "A row without a price meets no budget."
    yield _certainty(plan) if details else f"{_certainty(plan)} More: --details."


def _details(plan: TrainingPlan) -> Iterator[str]:
    yield from sentences_of(cost.evidence for cost in plan.costs if not cost.evidence.is_weak)
    for cost in plan.costs:
        yield f"{cost.cluster}, {counted(cost.num_gpus, 'GPU')}: {cost.interval.sentence}"
    yield from mfu_remarks(row.best.scenario for row in plan.rows if row.best)
    yield from cost_remarks(plan.costs)


def _certainty(plan: TrainingPlan) -> str:
    """Say whether the layouts are proved to be the fastest, and else how close they are."""
    if not plan.stopped:
        return "Exact: no legal layout that surely fits is faster than that of its row."
    statuses = Counter(row.status for row in plan.rows)
    gaps = [row.gap for row in plan.rows if row.best and not row.exact]
    bounded = [gap for gap in gaps if gap is not None]
    counts = {
        "proved to be the fastest": len(plan.costs) - len(gaps),
        f"at most {100 * max(bounded, default=0):.3g} % slower than the fastest": len(bounded),
        "the best so far": len(gaps) - len(bounded),
        "not found yet": statuses[Status.NOT_SEARCHED],
    }
    parts = [f"{number} {text}" for text, number in counts.items() if number]
    return f"The searches ended early: of the layouts, {', '.join(parts)}. Longer --seconds help."
