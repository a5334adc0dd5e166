"""Choose the fastest recompute that fits in memory (`recompute: auto`, `keep_microbatches: auto`).

Memory is computed first, and only variants that fit are simulated. If a strategy has several sizes,
the smallest one that fits is searched: more recompute never needs more memory.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simtrain.base.plain_data import Number, Sentence, joined_sentences, with_whole_numbers
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import most_outstanding
from simtrain.studies.changes import (
    Change,
    Trial,
    first_layers,
    last_resorts,
    policy_words,
    ranked,
    try_change,
)
from simtrain.units import format_bytes, format_seconds
from simtrain.workload.tape import Block

_SHOWN_TRIALS = 6
"""Simulated trials in the description of a choice, the fastest ones."""

PolicyTrial: TypeAlias = Trial[Change, PlannedIteration]
"""A change of the recompute policy, and the iteration with it."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The chosen recompute policy.

    Args:
        chosen: the trial of the fastest policy that fits, or of the smallest if none fits.
        trials: what was tried, in order.
    """

    chosen: PolicyTrial
    trials: tuple[PolicyTrial, ...]

    @property
    def words(self) -> Sentence:
        return _words(self.chosen)

    @property
    def why(self) -> Sentence:
        """The choice, its reason, and one line per trial."""
        reason = "the fastest that fits"
        if not self.chosen.fits:
            reason = "nothing fits, this needs the least memory"
        fastest = ranked(self.trials, _time_s)[:_SHOWN_TRIALS]
        shown = [trial for trial in self.trials if not trial.fits or trial in fastest]
        lines = [self._line(trial) for trial in shown]
        if more := len(self.trials) - len(shown):
            lines.append(Sentence(f"{more} slower ones"))
        return joined_sentences("\n  ", [Sentence(self.words, f" ({reason})"), *lines])

    def _line(self, trial: PolicyTrial) -> Sentence:
        """Return a trial in words, with the time of what fits or is chosen."""
        peak_bytes = trial.evaluation.fit.peak_bytes
        peak = Number(peak_bytes, format_bytes(peak_bytes))
        words: list[str | Number] = [_words(trial), ": ", peak]
        if trial.fits or trial is self.chosen:
            words += [", ", Number(_time_s(trial), format_seconds(_time_s(trial)))]
        if not trial.fits:
            words.append(", does not fit")
        return Sentence(*words)


def choose(
    scenario: Scenario, machine: Machine, layers: Sequence[Block] | None = None
) -> PolicyChoice:
    """Resolve `auto` in a scenario's recompute: choose the fastest policy that fits.

    If none fits, the policy with the smallest peak is chosen, and its report says so.

    Args:
        scenario: the scenario.
        machine: its cluster.
        layers: as for `PlannedIteration.of`.
    """
    search, policy = _Search(scenario, machine, layers), scenario.recompute
    is_whole = policy.strategy == "auto"
    trials = tuple(search.strategies()) if is_whole else (search.keeping_most(policy),)
    fastest = ranked(trials, _time_s)
    chosen = fastest[0] if fastest else min(trials, key=_peak_bytes)
    return PolicyChoice(chosen, trials)


def _time_s(trial: PolicyTrial) -> float:
    return trial.evaluation.iteration_time_s


def _peak_bytes(trial: PolicyTrial) -> int:
    return trial.evaluation.fit.peak_bytes


def _words(trial: PolicyTrial) -> Sentence:
    plan = trial.evaluation.plan
    kept, words = plan.num_saved_per_stage or (), policy_words(plan.scenario.recompute)
    if not any(kept):
        return with_whole_numbers(words)
    windows = most_outstanding(plan.schedule)
    numbers = [f"{number} of {window}" for number, window in zip(kept, windows, strict=True)]
    where = f"{numbers[0]} on the first stage, {numbers[-1]} on the last"
    return with_whole_numbers(f"{words}, keeping {where}")


@dataclass(frozen=True, slots=True)
class _Search:
    """Trials of recompute policies of one scenario."""

    scenario: Scenario
    machine: Machine
    layers: Sequence[Block] | None

    def trial(self, policy: RecomputePolicy, kept: tuple[int, ...] | None = None) -> PolicyTrial:
        """Try another policy, with `kept` forward passes without recompute per stage."""

        def plan(change: Change) -> PlannedIteration:
            """Plan the iteration with a change."""
            changed = change.applied_to(self.scenario)
            return PlannedIteration.of(changed, self.machine, kept, self.layers)

        return try_change(Change({"recompute": policy}), plan)

    def strategies(self) -> Iterator[PolicyTrial]:
        """Try all candidates for the fastest; the last resorts only if none of them fits."""
        trials = [self.trial(RecomputePolicy())]
        if not trials[0].fits:
            trials += [self.keeping_most(RecomputePolicy(strategy="selective"))]
            trials += self.smallest_block()
            trials += [self.keeping_most(RecomputePolicy(strategy="full"))]
        yield from trials
        if not any(trial.fits for trial in trials):
            yield from map(self.trial, last_resorts(self.scenario))

    def keeping_most(self, policy: RecomputePolicy) -> PolicyTrial:
        """Try the policy with as many forward passes kept per stage as fit."""
        if self.scenario.parallelism.pipeline == 1:
            return self.trial(policy)
        policy = policy.model_copy(update={"keep_microbatches": "auto"})
        trial = functools.cache(lambda kept: self.trial(policy, kept))
        nothing = trial((0,) * self.scenario.parallelism.pipeline).evaluation
        windows = most_outstanding(nothing.plan.schedule).tolist()
        return trial(
            most_that_fit(
                windows,
                lambda kept: trial(kept).evaluation.memory.peaks_bytes,
                nothing.memory.capacity_bytes,
            )
        )

    def smallest_block(self) -> list[PolicyTrial]:
        """Find the smallest number of recomputed layers per chunk that fits, if it is below all."""
        trial = functools.cache(lambda number: self.trial(first_layers(number)))
        numbers = range(1, max(self.scenario.chunk_sizes))
        smallest = _first_that_fits(numbers, trial)
        return [trial(number) for number in numbers[smallest : smallest + 1]]


def _first_that_fits(numbers: range, trial: Callable[[int], PolicyTrial]) -> int:
    """Return the place of the first number that fits, if all after it fit too."""
    return bisect_left(numbers, True, key=lambda number: trial(number).fits)


PeaksOf = Callable[[tuple[int, ...]], Sequence[int]]
"""Returns the peak bytes per stage for these numbers of kept passes per stage."""


def most_that_fit(
    windows: Sequence[int], peaks_of: PeaksOf, capacity_bytes: int
) -> tuple[int, ...]:
    """Find the largest number of kept passes per stage that fits; 0 if even 0 does not fit.

    Kept passes of a stage change only its own peak and never lower it, so that all stages are
    bisected at the same time.

    Args:
        windows: the largest number per stage.
        peaks_of: peak bytes per stage.
        capacity_bytes: memory of a GPU.
    """
    most, above = [0] * len(windows), [window + 1 for window in windows]
    while any(high - low > 1 for low, high in zip(most, above, strict=True)):
        guesses = tuple((low + high) // 2 for low, high in zip(most, above, strict=True))
        for stage, peak_bytes in enumerate(peaks_of(guesses)):
            (most if peak_bytes <= capacity_bytes else above)[stage] = guesses[stage]
    return tuple(most)
