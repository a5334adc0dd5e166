"""A plan of a training run, as a page for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType

from simtrain.cost.times import DAY_S
from simtrain.cost.training import assumptions
from simtrain.pages.cost_page import amount, source_notes
from simtrain.pages.tables import FittedTable, notes, verdict
from simtrain.planning.layout import Status
from simtrain.planning.result import Miss, PlanRow, TrainingPlan
from simtrain.search.explorer import Candidate
from simtrain.search.space import Point
from simtrain.search.words import in_short
from simtrain.units import format_bytes, format_seconds

_MWH_J = 3.6e9
_SPLIT, _ITERATION, _HOURS = "tensor x\npipeline\nx data", ">iteration", ">GPU-\nhours"
_ENERGY, _PEAK, _MFU = ">energy\nof nodes,\nMWh", ">peak", ">MFU"
_OPTIONAL = (_PEAK, _MFU, _HOURS, _ITERATION, _ENERGY, _SPLIT)
"""Columns to leave out, the least important first."""
_MISSES: dict[Miss, str] = {
    "days": "too long",
    "budget": "over budget",
    "no price": "no price",
}


def plan_page(plan: TrainingPlan, out: Path | None = None) -> RenderableType:
    """The report of `simtrain plan`; `out` is the folder of the scenario files, if any."""
    price = _price_heading(plan)
    headings = (
        *(">cluster", ">GPUs", _SPLIT, _ITERATION, _MFU, _PEAK),
        *(">days", _HOURS, price, _ENERGY, ""),
    )
    rows = [(_cells(row, plan), _style(row)) for row in plan.rows]
    table = FittedTable(headings, rows, _OPTIONAL, title=_title(plan))
    return Group(table, *notes(_notes(plan, out)), _verdict(plan))


def _title(plan: TrainingPlan) -> str:
    goodput = "" if plan.goodput == 1 else f", goodput {plan.goodput:g}"
    limits = _limits(plan)
    within = f", within {limits}" if limits else ""
    return f"{plan.scenario}: {plan.num_tokens:,} tokens{goodput}{within}"


def _limits(plan: TrainingPlan) -> str:
    """The limits in words: "30 days and 2,000,000 USD"."""
    days, budget = plan.limits.days, plan.limits.budget
    currency = (budget.currency if budget else None) or _currency(plan) or ""
    parts = [f"{days:g} days"] if days else []
    parts += [f"{amount(budget.amount)} {currency}".strip()] if budget else []
    return " and ".join(parts)


def _currency(plan: TrainingPlan) -> str | None:
    return next((cost.currency for cost in plan.costs if cost.currency), None)


def _price_heading(plan: TrainingPlan) -> str:
    currency = _currency(plan)
    return f">price,\n{currency}" if currency else ">price"


def _cells(row: PlanRow, plan: TrainingPlan) -> list[str]:
    start = [row.cluster, str(row.num_gpus)]
    found, cost = row.found, row.cost
    if found is None or cost is None:
        return [*start, *["-"] * 8, row.layout.status.value]
    split, node_j = found.scenario.parallelism, cost.node_energy_j
    return [
        *start,
        f"{split.tensor}x{split.pipeline}x{split.data}",
        format_seconds(cost.iteration_time_s),
        f"{found.run.mfu:.1%}",
        format_bytes(found.evaluation.peak_bytes),
        amount(cost.time_s / DAY_S),
        amount(cost.gpu_hours),
        "-" if cost.price is None else amount(cost.price),
        "-" if node_j is None else amount(node_j / _MWH_J),
        _mark(row, plan),
    ]


def _mark(row: PlanRow, plan: TrainingPlan) -> str:
    marks = [_MISSES[miss] for miss in row.misses]
    marks += ["fastest"] if row is plan.fastest else []
    marks += ["cheapest"] if row is plan.cheapest else []
    return ", ".join(marks)


def _style(row: PlanRow) -> str | None:
    return None if row.meets_limits else "dim"


def _notes(plan: TrainingPlan, out: Path | None) -> Iterator[str]:
    for words, row in (("Fastest", plan.fastest), ("Cheapest", plan.cheapest)):
        if row and row.found and not (row is plan.fastest and words == "Cheapest"):
            yield f"{words}: {row.num_gpus} GPUs of {row.cluster}, {_layout(row.found)}."
    yield from _reasons(plan)
    for cluster, num_nodes in plan.added_nodes.items():
        yield (
            f"{cluster}: {num_nodes} nodes, as --gpus needs; its profile has fewer "
            "(hardware.cluster.num_nodes)."
        )
    if plan.shared_overrides:
        yield "The scenario's hardware overrides apply to every cluster."
    yield _certainty(plan)
    yield from assumptions(plan.goodput)
    yield from source_notes(plan.costs)
    if any(cost.price is None for cost in plan.costs):
        yield 'Without a price a row meets no budget: give one, --price "2.5 USD/h".'
    if out is None:
        yield "Write each layout as a scenario to run with: --out FOLDER"
    else:
        yield f"The scenarios are in {out}."


def _reasons(plan: TrainingPlan) -> Iterator[str]:
    """Why rows have no layout; rows with the same reason share a note."""
    rows: dict[str, list[str]] = {}
    for row in plan.rows:
        if row.layout.problems:
            rows.setdefault(_problem(row), []).append(f"{row.cluster} x {row.num_gpus}")
    for problem, names in rows.items():
        yield f"{', '.join(names)}: {problem}."


def _layout(found: Candidate) -> str:
    return f"tensor x pipeline x data {in_short(Point.of(found.evaluation.scenario))}"


def _problem(row: PlanRow) -> str:
    problem = row.layout.problems[0]
    reason = problem.reason.replace("\n   ", ";") if problem.reason else ""
    return f"{problem.code} {problem.message}" + (f"; {reason}" if reason else "")


def _certainty(plan: TrainingPlan) -> str:
    """What is proved of the layouts."""
    inexact = [row for row in plan.rows if row.found and not row.layout.exact]
    num_missing = sum(
        row.layout.status in (Status.NOT_SEARCHED, Status.NOT_FOUND) for row in plan.rows
    )
    if not plan.stopped:
        return "No legal layout of a row is faster than the one shown."
    parts = [f"Stopped early: {num_missing} rows have no layout yet"] if num_missing else []
    gaps = [row.layout.gap for row in inexact if row.layout.gap is not None]
    if inexact:
        most = f" by at most {100 * max(gaps):.3g} %" if len(gaps) == len(inexact) else ""
        parts.append(f"{len(inexact)} layouts may be slower than the fastest{most}")
    return "; ".join(parts) + "."


def _verdict(plan: TrainingPlan) -> RenderableType:
    limits = _limits(plan)
    num_found = len(plan.costs)
    num_met = sum(row.meets_limits for row in plan.rows)
    if not limits:
        return verdict(True, f"{num_found} of {len(plan.rows)} combinations have a layout")
    words = f"{num_met} of {len(plan.rows)} combinations meet {limits}"
    return verdict(num_met > 0, words, "MISSED")
