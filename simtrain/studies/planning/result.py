"""Result of planning a training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.profile import HardwareProfile
from simtrain.studies.cost import CostLimits, TrainingCost
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.cost import Cost
from simtrain.studies.objectives.objective import Key, Objective
from simtrain.studies.objectives.registry import TrainingObjectiveName
from simtrain.studies.objectives.time import Time
from simtrain.studies.planning.layout import Combination, LayoutResult
from simtrain.studies.search.explorer import Candidate
from simtrain.studies.variation.draws import draws_of
from simtrain.units import DAY_S, format_seconds, four_digits

Miss = Literal["days", "budget", "no price"]
"""A limit that a row misses. "no price": there is a budget, but the price is unknown."""
_ABOUT = 0.01
"""Difference from a limit, as a share of it, that no prediction can tell."""


@dataclass(frozen=True, slots=True)
class PlanRow(PlainData):
    """A cluster with a number of GPUs: its best layout and training cost.

    Args:
        cluster: name or path of the hardware profile.
        num_gpus: number of GPUs.
        layout: result of the search.
        cost: time, price and energy of the training run; None without a layout.
        misses: limits that the row misses by more than 1 %.
        about: limits that the row is within 1 % of.
    """

    json_fields: ClassVar = keys(
        """cluster num_gpus status=layout.status meets_limits misses about exact=layout.exact
        gap=layout.gap layout=best cost problems"""
    )

    cluster: str
    num_gpus: int
    layout: LayoutResult
    cost: TrainingCost | None = None
    misses: tuple[Miss, ...] = ()
    about: tuple[Miss, ...] = ()

    @classmethod
    def of(
        cls,
        combination: Combination,
        layout: LayoutResult,
        profile: HardwareProfile,
        limits: CostLimits,
        cost_of: Callable[..., TrainingCost],
    ) -> PlanRow:
        """Add the training cost of a layout and the limits that it misses."""
        if layout.best is None:
            return cls(*combination, layout)
        best = layout.best
        time_s = best.run.iteration_time_s
        interval = Evaluator().interval(best.evaluation.scenario, time_s)
        cost = cost_of(best.scenario, profile, time_s, interval=interval)
        limited = [*_limited(limits, cost)]
        misses = tuple(name for name, value, most in limited if value > (1 + _ABOUT) * most)
        about = tuple(name for name, value, most in limited if abs(value - most) <= _ABOUT * most)
        return cls(*combination, layout, cost, misses, about)

    @property
    def best(self) -> Candidate | None:
        """The best layout, if any was found."""
        return self.layout.best

    @property
    def problems(self) -> list[dict[str, str | None]]:
        """Why there is no layout: code, message, reason and fix of each problem."""
        names = ("code", "message", "reason", "fix")
        return [{name: getattr(each, name) for name in names} for each in self.layout.problems]

    @property
    def meets_limits(self) -> bool:
        """Whether the row has a layout and meets every limit."""
        return self.cost is not None and not self.misses

    def __repr__(self) -> str:
        return f"<PlanRow {self}>"

    def __str__(self) -> str:
        name = Combination(self.cluster, self.num_gpus)
        if self.cost is None:
            return f"{name}: {self.layout.status.value}"
        days, price = self.cost.time_s / DAY_S, self.cost.price
        amount = "" if price is None else f", {price:,.0f} {self.cost.currency}"
        iteration = format_seconds(self.cost.iteration_time_s)
        return f"{name}: {four_digits(days)} days{amount} ({iteration} per iteration)"

    def key(self, objective: Objective) -> tuple[bool, Key]:
        """Return the sort key by an objective; rows without a layout are last."""
        if self.cost is None:
            return True, (0.0, 0.0)
        return False, objective.training_key(self.cost)


@dataclass(frozen=True, slots=True)
class TrainingPlan(PlainData):
    """A plan: rows sorted by its objective, the best first.

    Args:
        scenario: name of the scenario.
        num_tokens: number of training tokens.
        goodput: share of the training time spent in iterations; "auto" if each row has its own.
        limits: maximum days and price.
        objective: sorts the rows.
        rows: a row per cluster and number of GPUs.
        added_nodes: number of nodes that the plan needs, for clusters with fewer in their profile.
        shared_overrides: whether the scenario overrides the profiles of several clusters.
        stopped: whether the time budget or an interrupt ended searches early.
    """

    json_fields: ClassVar = keys(
        """scenario num_tokens goodput limits objective=objective_name fastest=fastest_place
        cheapest=cheapest_place num_nodes=added_nodes stopped draws rows"""
    )
    json_omits_none: ClassVar = frozenset({"draws"})

    scenario: str | None
    num_tokens: int
    goodput: float | Literal["auto"]
    limits: CostLimits
    objective: Objective
    rows: tuple[PlanRow, ...]
    added_nodes: Mapping[str, int]
    shared_overrides: bool
    stopped: bool

    def __repr__(self) -> str:
        name, best = self.scenario or "unnamed", best_row(self.rows, self.objective)
        return f"<TrainingPlan {name}: {len(self.rows)} rows; {best or 'none meets the limits'}>"

    @property
    def objective_name(self) -> TrainingObjectiveName:
        """Sorts the rows."""
        return self.objective.name

    @property
    def fastest(self) -> PlanRow | None:
        """The fastest row that meets the limits."""
        return best_row(self.rows, Time())

    @property
    def cheapest(self) -> PlanRow | None:
        """The cheapest row that meets the limits; rows without a price do not count."""
        priced = [row for row in self.rows if row.cost and row.cost.currency]
        return best_row(priced, Cost())

    @property
    def fastest_place(self) -> int | None:
        """The index of the fastest row that meets the limits."""
        return self._place(self.fastest)

    @property
    def cheapest_place(self) -> int | None:
        """The index of the cheapest row that meets the limits."""
        return self._place(self.cheapest)

    def _place(self, row: PlanRow | None) -> int | None:
        return next((place for place, other in enumerate(self.rows) if other is row), None)

    @property
    def draws(self) -> tuple[int, ...] | None:
        """Draws of the layout of each row, whose time is their mean; absent if none varies."""
        return draws_of(row.best.run.drawn for row in self.rows if row.best)

    @property
    def costs(self) -> list[TrainingCost]:
        """The costs of all rows with a layout."""
        return [row.cost for row in self.rows if row.cost]

    def stronger_than(self, row: PlanRow) -> list[TrainingCost]:
        """Return the costs on clusters whose times have stronger evidence than the row's."""
        weaker = row.cost
        if weaker is None:
            return []
        return [cost for cost in self.costs if weaker.evidence.is_weaker_than(cost.evidence)]


def best_row(rows: Iterable[PlanRow], objective: Objective) -> PlanRow | None:
    """Return the first of the best rows that meet the limits, if any does."""
    met = (row for row in rows if row.meets_limits)
    return min(met, key=lambda row: row.key(objective), default=None)


def _limited(limits: CostLimits, cost: TrainingCost) -> Iterator[tuple[Miss, float, float]]:
    """Yield what is limited with its value and its limit; an unknown price is above any budget."""
    if limits.time_s is not None:
        yield "days", cost.time_s, limits.time_s
    if limits.budget is not None and cost.price is None:
        yield "no price", math.inf, limits.budget.amount
    elif limits.budget is not None and cost.price is not None:
        yield "budget", cost.price, limits.budget.amount
