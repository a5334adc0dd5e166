"""A plan of a training run, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simtrain.cost import Limits, TrainingCost
from simtrain.errors import Problem
from simtrain.planning.layout import Layout
from simtrain.search.explorer import Candidate
from simtrain.search.result import found_json

PlanObjective = Literal["time", "cost"]
"""What the rows of a plan are sorted by."""

Miss = Literal["days", "budget", "no price"]
"""A limit that a row misses. A row without a price is not known to meet a budget."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A cluster with a number of GPUs, its best layout, and the cost of training with it.

    Args:
        cost: None if no layout is found.
        misses: the limits that the row misses.
    """

    cluster: str
    num_gpus: int
    layout: Layout
    cost: TrainingCost | None = None
    misses: tuple[Miss, ...] = ()

    @property
    def found(self) -> Candidate | None:
        """The best layout."""
        return self.layout.found

    @property
    def meets_limits(self) -> bool:
        """Whether a layout is found that meets every limit."""
        return self.cost is not None and not self.misses

    def key(self, objective: PlanObjective) -> tuple[bool, float, float]:
        """Sort by training time, or by price; rows without it, and without a layout, come last."""
        if self.cost is None:
            return True, 0.0, 0.0
        price, time_s = self.cost.price, self.cost.time_s
        if objective == "time":
            return False, time_s, self.cost.gpu_hours if price is None else price
        return False, float("inf") if price is None else price, time_s


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The rows of a plan, the best first by its objective.

    Args:
        added_nodes: number of nodes of each cluster whose profile has fewer than the plan needs.
        shared_overrides: whether the scenario overrides the profiles of several clusters.
        stopped: whether a budget of seconds or an interrupt ended the searches early.
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
        """The cheapest row that meets the limits, of those with a price."""
        rows = [row for row in self.rows if row.meets_limits and row.cost and row.cost.currency]
        return min(rows, key=lambda row: row.key("cost"), default=None)

    @property
    def costs(self) -> list[TrainingCost]:
        """The costs of all rows with a layout."""
        return [row.cost for row in self.rows if row.cost]

    def to_json(self) -> dict[str, Any]:
        """Plain data, in full precision; `fastest` and `cheapest` are numbers of rows, from 0."""
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
        "layout": found_json(row.found) if row.found else None,
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
