"""A plan of a training run, a row per cluster and number of GPUs: `simtrain plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simtrain.hardware.evidence import sentences_of
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.studies.planning.layout import Status
from simtrain.studies.planning.result import Miss, PlanRow, TrainingPlan
from simtrain.studies.search.space import Point
from simtrain.studies.search.words import in_short
from simtrain.units import DAY_S, counted
from simtrain.views.cost import cost_remarks
from simtrain.views.kinds import AMOUNT, BYTES, NUMBER, SECONDS, SHARE, TEXT, Kind, amount
from simtrain.views.view import Cell, Column, Row, Table, Verdict, View, remarks

_MWH_J = 3.6e9
_DAYS = Kind(lambda time_s: amount(time_s / DAY_S))
_MWH = Kind(lambda energy_j: amount(energy_j / _MWH_J))
_OPTIONAL = ("peak_bytes", "mfu", "gpu_hours", "iteration_time_s", "node_energy_j", "split")
"""Columns that a narrow terminal omits, the least important first."""
_MISSES: dict[Miss, str] = {
    "days": "too long",
    "budget": "over budget",
    "no price": "no price",
}


def plan_view(plan: TrainingPlan, out: Path | None = None) -> View:
    """Show a plan: a row per cluster and number of GPUs, notes, and whether the limits are met.

    Args:
        plan: the plan.
        out: folder of the scenario files; None if they were not written.
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
        Column("gpu_hours", "GPU-\nhours", AMOUNT),
        Column("price", f"price,\n{currency}" if currency else "price", AMOUNT),
        Column("node_energy_j", "energy\nof nodes,\nMWh", _MWH, "at most"),
        *_site_columns(plan),
        Column("remark", "", TEXT),
    )
    rows = [
        Row(_cells(row, plan, columns), None if row.meets_limits else "soft") for row in plan.rows
    ]
    table = Table("plan", _title(plan), columns, rows, optional=_OPTIONAL)
    return View([table, remarks(_notes(plan, out)), _verdict(plan)])


def _site_columns(plan: TrainingPlan) -> Iterator[Column]:
    """Yield the columns of a plan that counts the energy of the site."""
    priced = [cost for cost in plan.costs if cost.electricity_cost is not None]
    if priced:
        heading = f"elec-\ntricity,\n{priced[0].electricity_currency}"
        yield Column("electricity_cost", heading, AMOUNT, "at most")
    if any(cost.co2_t is not None for cost in plan.costs):
        yield Column("co2_t", "CO2,\ntonnes", AMOUNT, "at most")


def _title(plan: TrainingPlan) -> str:
    goodput = "" if plan.goodput == 1 else f", goodput {plan.goodput:g}"
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


def _mark(row: PlanRow, plan: TrainingPlan) -> str:
    marks = [_MISSES[miss] for miss in row.misses]
    marks += ["fastest"] if row is plan.fastest else []
    marks += ["cheapest"] if row is plan.cheapest else []
    is_best = row is plan.fastest or row is plan.cheapest
    if is_best and row.cost and plan.stronger_than(row):
        marks[-1] += f" ({row.cost.evidence.level.value})"
    return ", ".join(marks)


def _doubt(row: PlanRow, plan: TrainingPlan) -> str:
    """Name the clusters with stronger evidence than the best row's, if there are any."""
    names = dict.fromkeys(cost.cluster for cost in plan.stronger_than(row))
    level = row.cost.evidence.level.value if row.cost else ""
    return f". Its evidence ({level}) is weaker than that of {', '.join(names)}" if names else ""


def _notes(plan: TrainingPlan, out: Path | None) -> Iterator[str]:
    if plan.fastest:
        yield f"Fastest: {_row(plan.fastest)}{_doubt(plan.fastest, plan)}."
    if plan.cheapest and plan.cheapest is not plan.fastest:
        yield f"Cheapest: {_row(plan.cheapest)}{_doubt(plan.cheapest, plan)}."
    yield from sentences_of(cost.evidence for cost in plan.costs)
    if plan.fastest and plan.fastest.cost:
        yield f"Fastest: {plan.fastest.cost.interval.sentence}"
    yield from _doubtful_fits(plan)
    yield from _reasons(plan)
    for cluster, num_nodes in plan.added_nodes.items():
        yield (
            f"{cluster}: planned with {num_nodes} nodes for --gpus; the profile has fewer "
            "(hardware.cluster.num_nodes)."
        )
    if plan.shared_overrides:
        yield "The scenario's hardware overrides apply to every cluster."
    yield _certainty(plan)
    yield from mfu_remarks(row.best.scenario for row in plan.rows if row.best)
    yield from cost_remarks(plan.costs)
    if any(cost.price is None for cost in plan.costs):
        yield "A row without a price meets no budget."
    if out is None:
        yield "To write each layout as a scenario file, add: --out FOLDER"
    else:
        yield f"Scenario files are in {out}."


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
    inexact = [row for row in plan.rows if row.best and not row.layout.exact]
    num_missing = sum(
        row.layout.status in (Status.NOT_SEARCHED, Status.NOT_FOUND) for row in plan.rows
    )
    if not plan.stopped:
        return "Exact: the layout of each row is the fastest legal one."
    parts = [f"Stopped early: {num_missing} rows have no layout yet"] if num_missing else []
    gaps = [row.layout.gap for row in inexact if row.layout.gap is not None]
    if inexact:
        is_bounded = len(gaps) == len(inexact)
        most = f"by at most {100 * max(gaps):.3g} %" if is_bounded else "by an unknown share"
        parts.append(f"{len(inexact)} layouts may be slower than the fastest, {most}")
    return "; ".join(parts) + "."


def _verdict(plan: TrainingPlan) -> Verdict:
    limits = _limits(plan)
    num_met = sum(row.meets_limits for row in plan.rows)
    if not limits:
        return Verdict(True, f"{len(plan.costs)} of {len(plan.rows)} combinations have a layout")
    met = f"{num_met} of {len(plan.rows)} combinations meet {limits}"
    return Verdict(num_met > 0, met, "MISSED")
