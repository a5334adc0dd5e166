"""The fastest recompute that fits in memory (`recompute: auto`, `keep_microbatches: auto`).

Memory is looked at first, and only what fits is simulated. Where a strategy comes in several
sizes, the smallest that fits is looked for: recomputing more never needs more memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.report import MemoryReport, memory_report
from simtrain.plan import Plan
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.recompute_section import DEFAULT_MODULES
from simtrain.schedules import most_outstanding
from simtrain.studies.most_that_fit import most_that_fit
from simtrain.units import format_bytes, format_seconds

FASTEST = "the fastest that fits"
"""Why a choice was made, at the end of its words, in brackets."""


class Run(Protocol):
    """What is asked of a simulated iteration."""

    @property
    def iteration_time_s(self) -> float:
        """Seconds of the iteration."""


R = TypeVar("R", bound=Run)
PlanOf = Callable[[Scenario, tuple[int, ...] | None], Plan]


@dataclass(frozen=True, slots=True)
class Trial(Generic[R]):
    """A way to recompute, its memory, and, if it was simulated, what came of it."""

    plan: Plan
    memory: MemoryReport
    run: R | None = None

    @property
    def words(self) -> str:
        """How it recomputes."""
        kept = self.plan.num_saved_per_stage or ()
        words = policy_words(self.plan.scenario.recompute)
        if not any(kept):
            return words
        numbers = [
            f"{number} of {window}"
            for number, window in zip(kept, most_outstanding(self.plan.schedule), strict=True)
        ]
        return f"{words}, keeping {numbers[0]} on the first stage, {numbers[-1]} on the last"

    @property
    def peak_bytes(self) -> int:
        """Peak of the fullest stage."""
        return self.memory.fullest.peak_bytes

    def __str__(self) -> str:
        """One line of the report."""
        time = f", {format_seconds(self.run.iteration_time_s)}" if self.run else ""
        return f"{self.words}: {format_bytes(self.peak_bytes)}{time}" + (
            "" if self.memory.fits else ", does not fit"
        )


@dataclass(frozen=True, slots=True)
class Choice(Generic[R]):
    """What was chosen among the trials, and its run."""

    chosen: Trial[R]
    run: R
    trials: tuple[Trial[R], ...]

    @property
    def why(self) -> str:
        """The choice, its reason, and a line for everything that was tried."""
        fits = self.chosen.memory.fits
        reason = FASTEST if fits else "nothing fits, this needs least"
        return "\n  ".join([f"{self.chosen.words} ({reason})", *map(str, self.trials)])


def is_open(scenario: Scenario) -> bool:
    """Whether the scenario leaves something of its recompute to be chosen."""
    return "auto" in (scenario.recompute.strategy, scenario.recompute.keep_microbatches)


def choose(
    scenario: Scenario,
    profile: HardwareProfile,
    plan_of: PlanOf,
    simulate: Callable[[Plan], R],
) -> Choice[R]:
    """Try what the scenario leaves open and choose the fastest that fits.

    `plan_of` makes the plan of a scenario that leaves nothing open, or of one whose kept
    microbatches are given by stage.

    Where nothing fits, what needs least memory is chosen; that it does not fit is the report's
    to say.
    """
    trials: tuple[Trial[R], ...] = tuple(_tried(_Search(scenario, profile, plan_of)))
    fitting = [trial for trial in trials if trial.memory.fits]
    least = [min(trials, key=lambda trial: trial.peak_bytes)]
    runs = [(trial, simulate(trial.plan)) for trial in fitting or least]
    chosen, run = min(runs, key=lambda pair: pair[1].iteration_time_s)
    ran = {id(trial): run for trial, run in runs}
    return Choice(chosen, run, tuple(replace(one, run=ran.get(id(one))) for one in trials))


def _tried(search: _Search[R]) -> Iterator[Trial[R]]:
    policy = search.scenario.recompute
    if policy.strategy == "auto":
        yield from search.strategies()
    else:
        yield search.keeping_most(policy)


@dataclass(frozen=True, slots=True)
class _Search(Generic[R]):
    """Variations of one scenario and their memory."""

    scenario: Scenario
    profile: HardwareProfile
    plan_of: PlanOf

    def trial(self, policy: RecomputePolicy, kept: tuple[int, ...] | None = None) -> Trial[R]:
        """The scenario with another policy, with `kept` forward passes on each stage."""
        scenario = self.scenario.model_copy(update={"recompute": policy})
        plan = self.plan_of(scenario, kept)
        return Trial(plan, memory_report(plan, self.profile))

    def strategies(self) -> Iterator[Trial[R]]:
        """What can be the fastest that fits; the last resorts only where nothing before does."""
        found = [self.trial(RecomputePolicy())]
        if not found[0].memory.fits:
            found += [self.keeping_most(RecomputePolicy(strategy="selective"))]
            found += self.smallest_block()
            found += [self.keeping_most(RecomputePolicy(strategy="full"))]
        yield from found
        if not any(trial.memory.fits for trial in found):
            yield from map(self.trial, self.last_resorts())

    def keeping_most(self, policy: RecomputePolicy) -> Trial[R]:
        """The policy with as many forward passes kept on each stage as fit there."""
        if self.scenario.parallelism.pipeline == 1:
            return self.trial(policy)
        policy = policy.model_copy(update={"keep_microbatches": "auto"})
        trial = functools.cache(lambda kept: self.trial(policy, kept))
        nothing = trial((0,) * self.scenario.parallelism.pipeline)
        windows = most_outstanding(nothing.plan.schedule).tolist()
        capacity = nothing.memory.capacity_bytes
        return trial(most_that_fit(windows, lambda kept: trial(kept).memory.peaks_bytes, capacity))

    def smallest_block(self) -> list[Trial[R]]:
        """The fewest layers of each chunk that make it fit, where fewer than all of them do."""
        fitting: list[Trial[R]] = []
        low, high = 0, max(self.scenario.chunk_sizes)
        while high - low > 1:
            middle = (low + high) // 2
            policy = RecomputePolicy(strategy="full", method="block", num_layers=middle)
            trial = self.trial(policy)
            low, high = (low, middle) if trial.memory.fits else (middle, high)
            fitting = [trial] if trial.memory.fits else fitting
        return fitting

    def last_resorts(self) -> Iterator[RecomputePolicy]:
        """What holds less than one input a layer, by communication or by longer units."""
        grid = self.scenario.parallelism
        if grid.tensor > 1 and not grid.sequence_parallel:
            yield RecomputePolicy(strategy="full", distribute=True)
        if self.scenario.model.mtp_num_layers:
            return  # Rule E345 refuses longer units.
        sizes = self.scenario.chunk_sizes
        # Of the lengths that cut chunks into as many units, the shortest runs least again at once.
        shortest = {
            tuple(-(-layers // length) for layers in sizes): length
            for length in range(max(sizes), 1, -1)
        }
        for length in shortest.values():
            yield RecomputePolicy(strategy="full", num_layers=length)


def policy_words(policy: RecomputePolicy) -> str:
    """How a policy recomputes, but for the microbatches that it keeps."""
    layers = f"{policy.num_layers} layer{'s' * (policy.num_layers > 1)}"
    details = {
        f"modules {', '.join(policy.modules)}": policy.modules != DEFAULT_MODULES,
        f"the first {layers} of each chunk": policy.method == "block",
        f"units of {layers}": policy.method == "uniform" and policy.num_layers > 1,
        "inputs distributed": policy.distribute,
    }
    return ", ".join([policy.strategy, *(words for words, holds in details.items() if holds)])
