"""Rows of a plan: the best layout of a combination, its training cost, and the limits it misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simtrain.cost import Limits, training_cost
from simtrain.hardware.profile import HardwareProfile
from simtrain.planning.layout import Combination, LayoutResult
from simtrain.planning.result import Miss, PlanRow
from simtrain.units import Price


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Adds training cost and missed limits to the layout of a combination.

    Args:
        profiles: hardware profile of each cluster.
        num_tokens: number of training tokens.
        goodput: share of the training time spent in iterations.
        price: price per GPU-hour, instead of each profile's.
        limits: maximum days and price.
    """

    profiles: Mapping[str, HardwareProfile]
    num_tokens: int
    goodput: float
    price: Price | None
    limits: Limits

    def row(self, combination: Combination, layout: LayoutResult) -> PlanRow:
        """Build the row of a combination."""
        cluster, num_gpus = combination
        if layout.best is None:
            return PlanRow(cluster, num_gpus, layout)
        cost = training_cost(
            layout.best.scenario,
            self.profiles[cluster],
            layout.best.run.iteration_time_s,
            self.num_tokens,
            goodput=self.goodput,
            price_per_hour=self.price,
        )
        return PlanRow(cluster, num_gpus, layout, cost, self._misses(cost.time_s, cost.price))

    def _misses(self, time_s: float, price: float | None) -> tuple[Miss, ...]:
        misses: list[Miss] = []
        if self.limits.time_s is not None and time_s > self.limits.time_s:
            misses.append("days")
        if self.limits.budget is not None:
            if price is None:
                misses.append("no price")
            elif price > self.limits.budget.amount:
                misses.append("budget")
        return tuple(misses)
