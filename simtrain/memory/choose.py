"""The fastest recompute that fits in memory (`recompute: auto`, `keep_microbatches: auto`).

Each strategy is simulated, for its time and for its memory. Where a strategy comes in several
sizes, the smallest that fits is looked for: recomputing more never needs more memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration import Iteration
from simtrain.memory.most_that_fit import most_that_fit
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import most_outstanding
from simtrain.units import format_bytes, format_seconds


class Peak(Protocol):
    """What is asked of the memory of a stage."""

    @property
    def peak_bytes(self) -> int:
        """The most that a rank of the stage holds."""


class Memory(Protocol):
    """What is asked of the memory of an iteration."""

    @property
    def capacity_bytes(self) -> int:
        """Bytes of a GPU."""

    @property
    def stages(self) -> Sequence[Peak]:
        """One peak a stage."""


class Run(Protocol):
    """What is asked of a simulated iteration."""

    @property
    def iteration_time_s(self) -> float:
        """Seconds of the iteration."""

    @property
    def memory(self) -> Memory:
        """What its stages hold."""


R = TypeVar("R", bound=Run)


@dataclass(frozen=True, slots=True)
class Trial(Generic[R]):
    """A way to recompute that was simulated, and what came of it."""

    iteration: Iteration
    run: R

    @property
    def words(self) -> str:
        """How it recomputes."""
        kept = self.iteration.kept_per_stage or ()
        words = _policy_words(self.iteration.scenario.recompute)
        if not any(kept):
            return words
        numbers = [
            f"{number} of {most_outstanding(actions)}"
            for number, actions in zip(kept, self.iteration.schedule.ranks, strict=True)
        ]
        return f"{words}, keeping {numbers[0]} on the first stage, {numbers[-1]} on the last"

    @property
    def peaks(self) -> tuple[int, ...]:
        """Peak bytes of each stage."""
        return tuple(stage.peak_bytes for stage in self.run.memory.stages)

    @property
    def fits(self) -> bool:
        """Whether every stage fits."""
        return max(self.peaks) <= self.run.memory.capacity_bytes

    def __str__(self) -> str:
        """One line of the report."""
        peak, time = format_bytes(max(self.peaks)), format_seconds(self.run.iteration_time_s)
        return f"{self.words}: {peak}, {time}{'' if self.fits else ', does not fit'}"


@dataclass(frozen=True, slots=True)
class Choice(Generic[R]):
    """What was chosen among the trials."""

    chosen: Trial[R]
    trials: tuple[Trial[R], ...]

    @property
    def why(self) -> str:
        """The choice, its reason, and a line with peak and time for everything that was tried."""
        reason = "the fastest that fits" if self.chosen.fits else "nothing fits, this needs least"
        return "\n  ".join([f"{self.chosen.words} ({reason})", *map(str, self.trials)])


def is_open(scenario: Scenario) -> bool:
    """Whether the scenario leaves something of its recompute to be chosen."""
    return "auto" in (scenario.recompute.strategy, scenario.recompute.keep_microbatches)


def choose(
    scenario: Scenario, profile: HardwareProfile, simulate: Callable[[Iteration], R]
) -> Choice[R]:
    """Try what the scenario leaves open and choose the fastest that fits.

    Where nothing fits, what needs least memory is chosen; that it does not fit is the report's
    to say.
    """
    search = _Search(scenario, profile, simulate)
    policy = scenario.recompute
    is_auto = policy.strategy == "auto"
    trials = tuple(search.strategies()) if is_auto else (search.keeping_most(policy),)
    if fitting := [trial for trial in trials if trial.fits]:
        return Choice(min(fitting, key=lambda trial: trial.run.iteration_time_s), trials)
    return Choice(min(trials, key=lambda trial: max(trial.peaks)), trials)


@dataclass(frozen=True, slots=True)
class _Search(Generic[R]):
    """Simulates variations of one scenario."""

    scenario: Scenario
    profile: HardwareProfile
    simulate: Callable[[Iteration], R]

    def trial(self, policy: RecomputePolicy, kept: tuple[int, ...] | None = None) -> Trial[R]:
        """Simulate the scenario with another policy, with `kept` forward passes on each stage."""
        scenario = self.scenario.model_copy(update={"recompute": policy})
        iteration = Iteration(scenario, self.profile, kept)
        return Trial(iteration, self.simulate(iteration))

    def strategies(self) -> Iterator[Trial[R]]:
        """What can be the fastest that fits; the last resorts only where nothing before does."""
        found = [self.trial(RecomputePolicy())]
        if not found[0].fits:
            found += [self.keeping_most(RecomputePolicy(strategy="selective"))]
            found += self.smallest_block()
            found += [self.keeping_most(RecomputePolicy(strategy="full"))]
        yield from found
        if not any(trial.fits for trial in found):
            yield from map(self.trial, self.last_resorts())

    def keeping_most(self, policy: RecomputePolicy) -> Trial[R]:
        """The policy with as many forward passes kept on each stage as fit there."""
        if self.scenario.parallelism.pipeline == 1:
            return self.trial(policy)
        policy = policy.model_copy(update={"keep_microbatches": "auto"})
        trial = functools.cache(lambda kept: self.trial(policy, kept))
        nothing = trial((0,) * self.scenario.parallelism.pipeline)
        windows = [most_outstanding(actions) for actions in nothing.iteration.schedule.ranks]
        capacity = nothing.run.memory.capacity_bytes
        return trial(most_that_fit(windows, lambda kept: trial(kept).peaks, capacity))

    def smallest_block(self) -> list[Trial[R]]:
        """The fewest layers of each chunk that make it fit, where fewer than all of them do."""
        fitting: list[Trial[R]] = []
        low, high = 0, self.scenario.layers_per_chunk
        while high - low > 1:
            middle = (low + high) // 2
            policy = RecomputePolicy(strategy="full", method="block", num_layers=middle)
            trial = self.trial(policy)
            low, high = (low, middle) if trial.fits else (middle, high)
            fitting = [trial] if trial.fits else fitting
        return fitting

    def last_resorts(self) -> Iterator[RecomputePolicy]:
        """What holds less than one input a layer, by communication or by longer units."""
        grid = self.scenario.parallelism
        if grid.tensor > 1 and not grid.sequence_parallel:
            yield RecomputePolicy(strategy="full", distribute=True)
        layers = self.scenario.layers_per_chunk
        # Of the lengths that cut a chunk into as many units, the shortest runs least again at once.
        shortest = {-(-layers // length): length for length in range(layers, 1, -1)}
        for length in shortest.values():
            yield RecomputePolicy(strategy="full", num_layers=length)


def _policy_words(policy: RecomputePolicy) -> str:
    layers = f"{policy.num_layers} layer{'s' * (policy.num_layers > 1)}"
    details = {
        f"the first {layers} of each chunk": policy.method == "block",
        f"units of {layers}": policy.method == "uniform" and policy.num_layers > 1,
        "inputs distributed": policy.distribute,
    }
    return ", ".join([policy.strategy, *(words for words, holds in details.items() if holds)])
