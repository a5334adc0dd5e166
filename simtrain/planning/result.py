"""Result of planning a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simtrain.cost import Limits, TrainingCost
from simtrain.errors import Problem
from simtrain.planning.layout import LayoutResult
from simtrain.search.explorer import Candidate
from simtrain.search.result import found_json

PlanObjective = Literal["time", "cost"]
"""Quantity that sorts the rows: training time or price."""

Miss = Literal["days", "budget", "no price"]
"""A limit that a row misses. "no price": there is a budget, but the price is unknown."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A cluster with a number of GPUs: its best layout and training cost.

    Args:
        cluster: name or path of the hardware profile.
        num_gpus: number of GPUs.
        layout: result of the search.
        cost: time, price and energy of the training run; None without a layout.
        misses: limits that the row misses.
    """

    cluster: str
    num_gpus: int
    layout: LayoutResult
    cost: TrainingCost | None = None
    misses: tuple[Miss, ...] = ()

    @property
    def best(self) -> Candidate | None:
        """The best layout, if any was found."""
        return self.layout.best

    @property
    def meets_limits(self) -> bool:
        """Whether the row has a layout and meets every limit."""
        return self.cost is not None and not self.misses

    def key(self, objective: PlanObjective) -> tuple[bool, float, float]:
        """Return the sort key: by training time or by price.

        Rows without a price come after rows with one, and rows without a layout last.
        """
        if self.cost is None:
            return True, 0.0, 0.0
        price, time_s = self.cost.price, self.cost.time_s
        if objective == "time":
            return False, time_s, self.cost.gpu_hours if price is None else price
        return False, float("inf") if price is None else price, time_s


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A plan: rows sorted by its objective, the best first.

    Args:
        scenario: name of the scenario.
        num_tokens: number of training tokens.
        goodput: share of the training time spent in iterations.
        limits: maximum days and price.
        objective: sorts the rows.
        rows: a row per cluster and number of GPUs.
        added_nodes: number of nodes that the plan needs, for clusters with fewer in their profile.
        shared_overrides: whether the scenario overrides the profiles of several clusters.
        stopped: whether the time budget or an interrupt ended searches early.
    """

    scenario: str | None
    num_tokens: int
    goodput: float
    limits: Limits
    objective: PlanObjective
    rows: tuple[PlanRow, ...]
    added_nodes: Mapping[str, int]
    shared_overrides: bool
    stopped: bool

    @property
    def fastest(self) -> PlanRow | None:
        """The fastest row that meets the limits."""
        rows = [row for row in self.rows if row.meets_limits]
        return min(rows, key=lambda row: row.key("time"), default=None)

    @property
    def cheapest(self) -> PlanRow | None:
        """The cheapest row that meets the limits; rows without a price do not count."""
        rows = [row for row in self.rows if row.meets_limits and row.cost and row.cost.currency]
        return min(rows, key=lambda row: row.key("cost"), default=None)

    @property
    def costs(self) -> list[TrainingCost]:
        """The costs of all rows with a layout."""
        return [row.cost for row in self.rows if row.cost]

    def to_json(self) -> dict[str, Any]:
        """Return plain data in full precision; `fastest` and `cheapest` are indices of rows."""
        places = {id(row): place for place, row in enumerate(self.rows)}
        return {
            "scenario": self.scenario,
            "num_tokens": self.num_tokens,
            "goodput": self.goodput,
            "limits": self.limits.to_json(),
            "objective": self.objective,
            "fastest": places.get(id(self.fastest)),
            "cheapest": places.get(id(self.cheapest)),
            "num_nodes": dict(self.added_nodes),
            "stopped": self.stopped,
            "rows": [_row_json(row) for row in self.rows],
        }


def _row_json(row: PlanRow) -> dict[str, Any]:
    layout = row.layout
    return {
        "cluster": row.cluster,
        "num_gpus": row.num_gpus,
        "status": layout.status.value,
        "meets_limits": row.meets_limits,
        "misses": list(row.misses),
        "exact": layout.exact,
        "gap": layout.gap,
        "layout": found_json(row.best) if row.best else None,
        "cost": row.cost.to_json() if row.cost else None,
        "problems": [_problem_json(problem) for problem in layout.problems],
    }


def _problem_json(problem: Problem) -> dict[str, str | None]:
    return {
        "code": problem.code,
        "message": problem.message,
        "reason": problem.reason,
        "fix": problem.fix,
    }
