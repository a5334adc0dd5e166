"""Choose the fastest recompute that fits in memory (`recompute: auto`, `optimal`, and
`keep_microbatches: auto`).

Memory is computed first, and only variants that fit are simulated. If a strategy has several sizes,
the smallest one that fits is searched: more recompute never needs more memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from simtrain.base.wording import Number, Sentence, joined_sentences, with_whole_numbers
from simtrain.iteration.memory.report import MemoryReport, memory_report
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.run_plan import run_offload
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.recompute_section import OPEN_STRATEGIES
from simtrain.schedules import most_outstanding
from simtrain.studies.changes.policies import (
    first_layers,
    last_resorts,
    policy_words,
    selective_policies,
)
from simtrain.studies.most_that_fit import most_that_fit
from simtrain.studies.op_sets import best_op_sets
from simtrain.units import format_bytes, format_seconds

_MORE_SETS = 4
"""Sets of ops that are tried on either side of the first one that fits."""
_SHOWN_TRIALS = 6
"""Simulated trials in the description of a choice, the fastest ones."""


class TimedIteration(Protocol):
    """A simulated iteration."""

    @property
    def iteration_time_s(self) -> float:
        """Iteration time."""


R = TypeVar("R", bound=TimedIteration)
PlanOf = Callable[[Scenario, tuple[int, ...] | None], Plan]


@dataclass(frozen=True, slots=True)
class PolicyTrial(Generic[R]):
    """A recompute policy, its memory, and its run if it was simulated."""

    plan: Plan
    memory: MemoryReport
    run: R | None = None

    @property
    def words(self) -> Sentence:
        """Description of the policy."""
        kept = self.plan.num_saved_per_stage or ()
        words = policy_words(self.plan.scenario.recompute)
        if not any(kept):
            return with_whole_numbers(words)
        numbers = [
            f"{number} of {window}"
            for number, window in zip(kept, most_outstanding(self.plan.schedule), strict=True)
        ]
        where = f"{numbers[0]} on the first stage, {numbers[-1]} on the last"
        return with_whole_numbers(f"{words}, keeping {where}")

    @property
    def peak_bytes(self) -> int:
        """Peak of the fullest stage."""
        return self.memory.fullest.peak_bytes

    @property
    def line(self) -> Sentence:
        """One line of the report."""
        words: list[str | Number] = [
            self.words,
            ": ",
            Number(self.peak_bytes, format_bytes(self.peak_bytes)),
        ]
        if self.run:
            time_s = self.run.iteration_time_s
            words += [", ", Number(time_s, format_seconds(time_s))]
        if not self.memory.fits:
            words.append(", does not fit")
        return Sentence(*words)


@dataclass(frozen=True, slots=True)
class PolicyChoice(Generic[R]):
    """The chosen trial and its run."""

    chosen: PolicyTrial[R]
    run: R
    trials: tuple[PolicyTrial[R], ...]

    @property
    def why(self) -> Sentence:
        """The choice, its reason, and one line per trial."""
        fits = self.chosen.memory.fits
        reason = "the fastest that fits" if fits else "nothing fits, this needs the least memory"
        first = Sentence(self.chosen.words, f" ({reason})")
        fastest = sorted(
            (trial for trial in self.trials if trial.run),
            key=lambda trial: trial.run.iteration_time_s if trial.run else 0.0,
        )[:_SHOWN_TRIALS]
        shown = [trial for trial in self.trials if trial.run is None or trial in fastest]
        lines = [trial.line for trial in shown]
        if more := len(self.trials) - len(shown):
            lines.append(Sentence(f"{more} slower ones"))
        return joined_sentences("\n  ", [first, *lines])


def is_open(scenario: Scenario) -> bool:
    """Whether part of the scenario's recompute is `auto`."""
    policy = scenario.recompute
    return policy.strategy in OPEN_STRATEGIES or policy.keep_microbatches == "auto"


def choose(
    scenario: Scenario,
    machine: Machine,
    plan_of: PlanOf,
    simulate: Callable[[Plan], R],
) -> PolicyChoice[R]:
    """Resolve `auto` in a scenario's recompute: choose the fastest policy that fits.

    If none fits, the policy with the smallest peak is chosen, and its report says so.

    Args:
        scenario: the scenario.
        machine: its cluster.
        plan_of: builds the plan of a scenario without `auto`, or with the given number of kept
            microbatches per stage.
        simulate: runs a plan.
    """
    search: _Search[R] = _Search(scenario, machine, plan_of)
    if (policy := scenario.recompute).strategy in OPEN_STRATEGIES:
        trials = tuple(search.strategies())
    else:
        trials = (search.keeping_most(policy),)
    fitting = [trial for trial in trials if trial.memory.fits]
    least = [min(trials, key=lambda trial: trial.peak_bytes)]
    runs = [(trial, simulate(trial.plan)) for trial in fitting or least]
    chosen, run = min(runs, key=lambda pair: pair[1].iteration_time_s)
    ran = {id(trial): run for trial, run in runs}
    return PolicyChoice(
        chosen, run, tuple(replace(trial, run=ran.get(id(trial))) for trial in trials)
    )


@dataclass(frozen=True, slots=True)
class _Search(Generic[R]):
    """Variations of one scenario and their memory."""

    scenario: Scenario
    machine: Machine
    plan_of: PlanOf

    def trial(self, policy: RecomputePolicy, kept: tuple[int, ...] | None = None) -> PolicyTrial[R]:
        """Try another policy, with `kept` forward passes without recompute per stage."""
        scenario = self.scenario.model_copy(update={"recompute": policy})
        plan = self.plan_of(scenario, kept)
        profile, iteration = self.machine.model.profile, run_offload(plan, self.machine)
        return PolicyTrial(plan, memory_report(plan, profile, iteration))

    def strategies(self) -> Iterator[PolicyTrial[R]]:
        """Try all candidates for the fastest; the last resorts only if none of them fits."""
        trials = [self.trial(RecomputePolicy())]
        if not trials[0].memory.fits:
            trials += [self.keeping_most(RecomputePolicy(strategy="selective"))]
            trials += self.smallest_block()
            trials += [self.keeping_most(RecomputePolicy(strategy="full"))]
            if self.scenario.recompute.strategy == "optimal":
                by_op = self.scenario.facts.checkpoints_ops
                trials += self.op_sets() if by_op else self.module_sets()
        yield from trials
        if not any(trial.memory.fits for trial in trials):
            yield from map(self.trial, last_resorts(self.scenario))

    def keeping_most(self, policy: RecomputePolicy) -> PolicyTrial[R]:
        """Try the policy with as many forward passes kept per stage as fit."""
        if self.scenario.parallelism.pipeline == 1:
            return self.trial(policy)
        policy = policy.model_copy(update={"keep_microbatches": "auto"})
        trial = functools.cache(lambda kept: self.trial(policy, kept))
        nothing = trial((0,) * self.scenario.parallelism.pipeline)
        windows = most_outstanding(nothing.plan.schedule).tolist()
        capacity = nothing.memory.capacity_bytes
        return trial(most_that_fit(windows, lambda kept: trial(kept).memory.peaks_bytes, capacity))

    def smallest_block(self) -> list[PolicyTrial[R]]:
        """Find the smallest number of recomputed layers per chunk that fits, if it is below all."""
        fitting: list[PolicyTrial[R]] = []
        low, high = 0, max(self.scenario.chunk_sizes)
        while high - low > 1:
            middle = (low + high) // 2
            trial = self.trial(first_layers(middle))
            low, high = (low, middle) if trial.memory.fits else (middle, high)
            fitting = [trial] if trial.memory.fits else fitting
        return fitting

    def op_sets(self) -> list[PolicyTrial[R]]:
        """Find the sets of saved ops that fit and run the least again, by bisection.

        The sets are ordered by bytes, so that a set of fewer bytes needs less memory. Peaks also
        depend on the tensors of one layer's backward pass; so some more sets are tried.
        """
        whole = self.trial(RecomputePolicy()).plan
        sets = best_op_sets(whole, self.machine.model.seconds)

        @functools.cache
        def trial(number: int) -> PolicyTrial[R]:
            return self.trial(RecomputePolicy(strategy="ops", saved_ops=sets[number].ops))

        low, high = 0, len(sets)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if trial(middle).memory.fits else (middle + 1, high)
        near = range(max(0, low - _MORE_SETS), min(len(sets), low + _MORE_SETS))
        trials = map(trial, near)
        return [candidate for candidate in trials if candidate.memory.fits]

    def module_sets(self) -> list[PolicyTrial[R]]:
        """Find the sets of modules that are legal and fit."""
        policies = selective_policies(self.scenario)
        return [self.keeping_most(each) for each in policies if self.trial(each).memory.fits]
