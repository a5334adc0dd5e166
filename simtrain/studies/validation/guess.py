"""A guess at what the source of measured runs does not say, from an error that they share.

If most predictions are wrong in the same direction, or most runs that ran do not fit, one setting
may be another one in all runs. Settings that no source states are changed for some of the runs, and
the one that explains the most is named. It remains a guess: the cause may lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.resources import list_stacks
from simtrain.studies.changes.change import Change, changes_of
from simtrain.studies.changes.trial import try_change
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.validation.measured import MeasuredRun

SAMPLE = 12
"""Runs for which changes are tried."""
FEWEST_RUNS = 5
"""Fewer runs share no error."""
_SAME_SIDE = 0.8
"""Share of the errors of one sign that is a bias of all."""
_LEAST_BIAS = 0.1
"""Median |error| that is worth a guess: 90 % intervals are as wide."""
_EXPLAINS = 0.6
"""A change explains a bias if it leaves at most this share of the mean |error|."""
_MOST_FIT = 0.9
"""A change explains that runs do not fit if this share of them fits with it."""
_GUESSES: dict[str, tuple[object, ...]] = {
    "recompute": ("full", "selective", "none"),
    "attention_backend": ("fused", "unfused"),
    "parallelism.sequence_parallel": (True, False),
    "memory.zero_stage": (0, 1),
    "overlap.data_parallel": (True, False),
    "overlap.parameter_gather": (True, False),
    "precision.gradients": ("bf16", "fp32"),
    "software.attention_kernel": ("flash_attention_2", "newest"),
    "software.cuda_graphs": (True, False),
}
"""Settings that tables often leave out, with the values to try."""
_STACK = "software.stack"


@dataclass(frozen=True, slots=True)
class SampledErrors:
    """How predictions of some runs compare with them.

    Args:
        errors: predicted / measured time - 1 of each run that was timed.
        num_fit: number of the runs that are predicted to fit.
    """

    errors: tuple[float, ...]
    num_fit: int

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun], evaluations: Sequence[Evaluation]) -> SampledErrors:
        """Compare evaluations with measured runs, in the same order."""
        errors = (
            evaluation.iteration_time_s / run.iteration_time_s - 1
            for run, evaluation in zip(runs, evaluations, strict=True)
            if run.iteration_time_s
        )
        return cls(tuple(errors), sum(evaluation.fits for evaluation in evaluations))

    @property
    def mean_abs_error(self) -> float:
        """Mean |error| of times; 0 if none was measured."""
        return float(np.mean(np.abs(self.errors))) if self.errors else 0.0

    @property
    def is_biased(self) -> bool:
        """Whether most errors have one sign, and are not small."""
        if len(self.errors) < FEWEST_RUNS:
            return False
        errors = np.array(self.errors)
        share = max(np.mean(errors > 0), np.mean(errors < 0))
        return bool(share >= _SAME_SIDE and np.median(np.abs(errors)) >= _LEAST_BIAS)


@dataclass(frozen=True, slots=True)
class Guess(PlainData):
    """A setting that would explain an error of all runs.

    Args:
        change: the setting.
        num_runs: runs for which it was tried.
        before: errors with what the sources state.
        after: errors with the setting.
    """

    json_fields: ClassVar = keys(
        """setting=change.options num_runs mean_abs_error_before=before.mean_abs_error
        mean_abs_error_after=after.mean_abs_error num_fit_before=before.num_fit
        num_fit_after=after.num_fit"""
    )

    change: Change
    num_runs: int
    before: SampledErrors
    after: SampledErrors


def guess_setting(runs: Sequence[MeasuredRun], evaluator: Evaluator) -> Guess | None:
    """Return the setting that would explain an error of all runs best, or None.

    Args:
        runs: measured runs that ran and whose scenarios are legal.
        evaluator: simulates them, also those that do not fit.
    """
    if len(runs) < FEWEST_RUNS:
        return None
    sample = _Sample(runs, evaluator)
    before = sample.before
    most_do_not_fit = 2 * before.num_fit < len(runs)
    if not (before.is_biased or most_do_not_fit):
        return None
    guesses = [
        Guess(change, len(runs), before, after)
        for change in sample.changes()
        if (after := sample.with_change(change)) is not None
    ]
    if most_do_not_fit:
        guesses = [guess for guess in guesses if guess.after.num_fit >= _MOST_FIT * len(runs)]
    else:
        guesses = [guess for guess in guesses if guess.after.num_fit >= before.num_fit]
    if before.is_biased:
        most = _EXPLAINS * before.mean_abs_error
        guesses = [guess for guess in guesses if guess.after.mean_abs_error <= most]
    return min(guesses, key=_by_plausibility, default=None)


def _by_plausibility(guess: Guess) -> tuple[bool, float]:
    """Return the key of a guess: a single setting is more plausible than another software stack."""
    return _STACK in guess.change.values, guess.after.mean_abs_error


@dataclass
class _Sample:
    """Some of the runs, and their evaluations with changes."""

    runs: Sequence[MeasuredRun]
    evaluator: Evaluator

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """Evaluations with what the sources state."""
        return [self.evaluator.evaluate(run.scenario) for run in self.runs if run.scenario]

    @cached_property
    def before(self) -> SampledErrors:
        """Errors with what the sources state."""
        return SampledErrors.of(self.runs, self.evaluations)

    def changes(self) -> Iterator[Change]:
        """Yield changes of fields that no run states, each at least one run's change."""
        stated = set[str]().union(*(run.stated or () for run in self.runs))
        values_of: dict[str, Iterable[object]] = {
            field: values
            for field, values in {**_GUESSES, _STACK: list_stacks()}.items()
            if not any(name.startswith(field) for name in stated)
        }
        changes = (
            (field, value)
            for run in self.runs
            if run.scenario
            for change in changes_of(run.scenario, values_of)
            for field, value in change.values.items()
        )
        for field, value in dict.fromkeys(changes):
            yield Change({field: value})

    def with_change(self, change: Change) -> SampledErrors | None:
        """Return the errors with a change; None if it is illegal for a run."""
        evaluations = list[Evaluation]()
        for run in self.runs:
            assert run.scenario, "only legal runs are sampled"
            trial = try_change(change, self.evaluator.changing(run.scenario))
            if not trial.is_legal:
                return None
            evaluations.append(trial.evaluation)
        return SampledErrors.of(self.runs, evaluations)
