"""Plan a training run: the best layout and its cost per cluster and number of GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simtrain.cost import Limits, training_cost
from simtrain.cost.limits import NO_LIMITS, check_goodput
from simtrain.cost.times import DAY_S
from simtrain.errors import Location
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.planning.layout import NOT_SEARCHED, Layout, best_layout
from simtrain.planning.problems import check_currencies, check_plan, nothing_found
from simtrain.planning.processes import layouts_in_processes
from simtrain.planning.result import Miss, PlanObjective, PlanRow, TrainingPlan
from simtrain.resources import find_profile
from simtrain.scenario import Scenario, check_values
from simtrain.search.explorer import ProgressCallback
from simtrain.units import Price, format_seconds

Combination = tuple[str, int]
"""A cluster and a number of GPUs."""
_LEAST_S = 1e-6
"""Smallest budget of a search; the first combination is searched in any case."""


def plan_training(
    base: Scenario,
    num_tokens: int,
    clusters: Sequence[str],
    gpus: Sequence[int],
    *,
    limits: Limits = NO_LIMITS,
    goodput: float = 1.0,
    price: Price | None = None,
    objective: PlanObjective = "time",
    workers: int = 1,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_progress: ProgressCallback = lambda what, done, total, best: None,
) -> TrainingPlan:
    """Find the best layout for each cluster and number of GPUs, and the cost of training with it.

    For one cluster and number of GPUs the fastest layout is also the cheapest.

    Args:
        base: model and global batch; see `search` for the fields that keep their values.
        num_tokens: tokens to train on.
        clusters: names or paths of hardware profiles. A cluster with fewer GPUs than the largest
            of `gpus` gets more nodes.
        gpus: the numbers of GPUs.
        limits: maximum days and price of a row.
        goodput: share of the training time spent in iterations.
        price: price per GPU-hour, instead of each profile's.
        objective: sorts the rows.
        workers: processes that search, each one combination at a time; the plan is the same with
            any number of them. A script that asks for several needs
            `if __name__ == "__main__":`, because they import it.
        seconds: time budget, shared by the combinations; `search` says how exact a row then is.
        interrupted: polled; True ends the plan with the rows found so far. Workers finish the
            searches that they have begun, unless Ctrl-C reaches them too.
        on_progress: called with the current search, the numbers of finished and of all
            combinations, and the best row so far.

    Raises:
        InputError: a wrong value, an unknown cluster, prices in several currencies, or no
            combination has a legal layout.
        DoesNotFitError: no combination has a layout, and some of them do not fit in memory.
    """
    check_values(base)
    check_goodput(goodput)
    check_plan(clusters, gpus, workers, seconds, objective)
    names = tuple(dict.fromkeys(clusters))
    added = {name: _added_nodes(base, name, max(gpus)) for name in names}
    bases = {name: _on_cluster(base, name, added[name]) for name in names}
    profiles = {name: profile_of(one) for name, one in bases.items()}
    check_currencies([] if price else list(profiles.values()), limits)

    def row_of(combination: Combination, layout: Layout) -> PlanRow:
        name, num_gpus = combination
        found = layout.found
        if found is None:
            return PlanRow(name, num_gpus, layout)
        cost = training_cost(
            found.scenario,
            profiles[name],
            found.run.iteration_time_s,
            num_tokens,
            goodput=goodput,
            price_per_hour=price,
        )
        return PlanRow(
            name, num_gpus, layout, cost, tuple(_misses(cost.time_s, cost.price, limits))
        )

    combinations = [(name, number) for name in names for number in dict.fromkeys(gpus)]
    searches = _Searches(bases, combinations, row_of, objective, seconds, interrupted, on_progress)
    if workers == 1:
        searches.run_here()
    else:
        searches.run_in(workers)
    rows = [row_of(one, searches.layouts.get(one, NOT_SEARCHED)) for one in combinations]
    if not any(row.found for row in rows):
        raise nothing_found(rows)
    return TrainingPlan(
        base.name,
        num_tokens,
        goodput,
        limits,
        objective,
        tuple(sorted(rows, key=lambda row: row.key(objective))),
        {name: number for name, number in added.items() if number},
        bool(base.hardware) and len(names) > 1,
        any(not row.layout.exact for row in rows),
    )


def _added_nodes(base: Scenario, cluster: str, num_gpus: int) -> int | None:
    """Return the number of nodes that the plan needs; None if the profile has enough."""
    find_profile(cluster, Location("--cluster"))
    of_profile: HardwareProfile = profile_of(_on_cluster(base, cluster, None))
    if num_gpus <= of_profile.cluster.num_gpus:
        return None
    return -(-num_gpus // of_profile.cluster.gpus_per_node.value)


def _on_cluster(base: Scenario, cluster: str, num_nodes: int | None) -> Scenario:
    changes: dict[str, object] = {} if cluster == base.cluster else {"cluster": cluster}
    if num_nodes is not None:
        changes["hardware.cluster.num_nodes"] = num_nodes
    return base.replace(changes) if changes else base


def _misses(time_s: float, price: float | None, limits: Limits) -> list[Miss]:
    misses: list[Miss] = []
    if limits.time_s is not None and time_s > limits.time_s:
        misses.append("days")
    if limits.budget is not None:
        if price is None:
            misses.append("no price")
        elif price > limits.budget.amount:
            misses.append("budget")
    return misses


@dataclass
class _Searches:
    """The searches of a plan, one per combination, in their order."""

    bases: Mapping[str, Scenario]
    combinations: Sequence[Combination]
    row_of: Callable[[Combination, Layout], PlanRow]
    objective: PlanObjective
    seconds: float | None
    interrupted: Callable[[], bool]
    on_progress: ProgressCallback
    layouts: dict[Combination, Layout] = field(default_factory=dict)
    start_s: float = field(default_factory=time.monotonic)
    best: PlanRow | None = None
    best_in_short: str = ""

    def run_here(self) -> None:
        """Search one combination after another in this process."""
        for place, combination in enumerate(self.combinations):
            share_s = self.share_s(len(self.combinations) - place)
            if self.is_over(share_s):
                return
            cluster, num_gpus = combination
            words = f"{cluster}, {num_gpus} GPUs"

            def on_progress(
                phase: str, done: int, total: int, best: str, words: str = words
            ) -> None:
                self.say(f"{words}: {phase}")

            base = self.bases[cluster]
            self.take(
                combination, best_layout(base, num_gpus, share_s, self.interrupted, on_progress)
            )

    def run_in(self, workers: int) -> None:
        """Search several combinations at a time, each in its own process."""
        left = list(self.combinations)

        def next_search() -> tuple[Combination, Scenario, int, float | None] | None:
            share_s = self.share_s(len(left) / workers) if left else None
            if not left or self.is_over(share_s):
                return None
            combination = left.pop(0)
            return combination, self.bases[combination[0]], combination[1], share_s

        self.say("searching")
        for combination, layout in layouts_in_processes(next_search, workers, self.interrupted):
            self.take(combination, layout)
            self.say("searching")

    def share_s(self, num_left: float) -> float | None:
        """The seconds that the next combination may take; None without a budget."""
        if self.seconds is None:
            return None
        rest_s = self.seconds - (time.monotonic() - self.start_s)
        return max(rest_s / max(num_left, 1), _LEAST_S)

    def is_over(self, share_s: float | None) -> bool:
        """Whether to begin no further combination; the first one always begins."""
        if self.interrupted():
            return True
        return share_s is not None and share_s <= _LEAST_S and bool(self.layouts)

    def take(self, combination: Combination, layout: Layout) -> None:
        """Store the result of a search and update the best row."""
        self.layouts[combination] = layout
        row = self.row_of(combination, layout)
        if not row.meets_limits or row.cost is None:
            return
        if self.best is None or row.key(self.objective) < self.best.key(self.objective):
            self.best = row
            days = row.cost.time_s / DAY_S
            price = "" if row.cost.price is None else f", {row.cost.price:,.0f} {row.cost.currency}"
            time_ = format_seconds(row.cost.iteration_time_s)
            self.best_in_short = (
                f"{row.cluster}, {row.num_gpus} GPUs: {days:.4g} days{price} ({time_} an iteration)"
            )

    def say(self, words: str) -> None:
        """Report the progress of the searches."""
        self.on_progress(words, len(self.layouts), len(self.combinations), self.best_in_short)
