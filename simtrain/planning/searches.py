"""Searches of a plan: one per combination of a cluster and a number of GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simtrain.cost.times import DAY_S
from simtrain.planning.layout import Combination, LayoutResult, best_layout
from simtrain.planning.processes import SearchTask, layouts_in_processes
from simtrain.planning.result import PlanObjective, PlanRow
from simtrain.planning.rows import RowBuilder
from simtrain.scenario import Scenario
from simtrain.search.explorer import ProgressCallback
from simtrain.units import counted, format_seconds

_MIN_BUDGET_S = 1e-6
"""Smallest time budget of a search; the first combination is always searched."""


@dataclass
class Searches:
    """Runs the searches of a plan in order, and reports their progress.

    Args:
        bases: the scenario to search from, for each cluster.
        combinations: clusters and numbers of GPUs to search.
        rows: builds rows, to report the best one so far.
        objective: orders the rows.
        seconds: time budget of all searches together; None for no limit.
        interrupted: polled; True ends the searches.
        on_progress: as for `plan_training`.
        layouts: results of the finished searches.
    """

    bases: Mapping[str, Scenario]
    combinations: Sequence[Combination]
    rows: RowBuilder
    objective: PlanObjective
    seconds: float | None
    interrupted: Callable[[], bool]
    on_progress: ProgressCallback
    layouts: dict[Combination, LayoutResult] = field(default_factory=dict)
    start_s: float = field(default_factory=time.monotonic)
    best: PlanRow | None = None

    def run_here(self) -> None:
        """Search one combination after another in this process."""
        for place, combination in enumerate(self.combinations):
            budget_s = self._budget_s(len(self.combinations) - place)
            if self._is_over(budget_s):
                return
            cluster, num_gpus = combination

            def on_progress(
                phase: str, done: int, total: int, best: str, name: str = _name(combination)
            ) -> None:
                self._report(f"{name}: {phase}")

            base = self.bases[cluster]
            layout = best_layout(base, num_gpus, budget_s, self.interrupted, on_progress)
            self._store(combination, layout)

    def run_in_processes(self, workers: int) -> None:
        """Search several combinations at a time, each in its own process."""
        remaining = list(self.combinations)

        def next_search() -> SearchTask | None:
            """Take the next combination, with its share of the remaining time; None at the end."""
            budget_s = self._budget_s(len(remaining) / workers) if remaining else None
            if not remaining or self._is_over(budget_s):
                return None
            combination = remaining.pop(0)
            return SearchTask(combination, self.bases[combination[0]], budget_s)

        self._report("searching")
        for combination, layout in layouts_in_processes(next_search, workers, self.interrupted):
            self._store(combination, layout)
            self._report("searching")

    def _budget_s(self, num_rounds: float) -> float | None:
        """Return the time budget of the next search if `num_rounds` searches are left in a row."""
        if self.seconds is None:
            return None
        remaining_s = self.seconds - (time.monotonic() - self.start_s)
        return max(remaining_s / max(num_rounds, 1), _MIN_BUDGET_S)

    def _is_over(self, budget_s: float | None) -> bool:
        """Whether no further search begins; the first one begins with any budget."""
        if self.interrupted():
            return True
        return budget_s is not None and budget_s <= _MIN_BUDGET_S and bool(self.layouts)

    def _store(self, combination: Combination, layout: LayoutResult) -> None:
        """Store the result of a search and update the best row that meets the limits."""
        self.layouts[combination] = layout
        row = self.rows.row(combination, layout)
        if not row.meets_limits:
            return
        if self.best is None or row.key(self.objective) < self.best.key(self.objective):
            self.best = row

    def _report(self, phase: str) -> None:
        done, total = len(self.layouts), len(self.combinations)
        self.on_progress(phase, done, total, _summary(self.best) if self.best else "")


def _name(combination: Combination) -> str:
    cluster, num_gpus = combination
    return f"{cluster}, {counted(num_gpus, 'GPU')}"


def _summary(row: PlanRow) -> str:
    """Describe a row for the progress bar: "h100_sxm, 64 GPUs: 12 days, 9,000 USD (2 s/...)"."""
    if row.cost is None:
        return ""
    days, price = row.cost.time_s / DAY_S, row.cost.price
    amount = "" if price is None else f", {price:,.0f} {row.cost.currency}"
    iteration = format_seconds(row.cost.iteration_time_s)
    name = _name((row.cluster, row.num_gpus))
    return f"{name}: {days:.4g} days{amount} ({iteration} per iteration)"
