"""Trials: what changes of a scenario make of its time and memory, and which of them is the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from simtrain.errors import InputError
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.changes.change import Change
from simtrain.studies.evaluation import Evaluation, Evaluator


class TrialVerdict(StrEnum):
    """Whether a changed scenario can run."""

    FITS = "fits"
    TOO_LARGE = "does not fit"
    ILLEGAL = "illegal"


@dataclass(frozen=True, slots=True)
class Trial:
    """A change and the evaluation of the changed scenario.

    Args:
        change: the change.
        evaluation: peak memory and, if it fits, time; None if the changed scenario is illegal.
        error: why it is illegal.
    """

    change: Change
    evaluation: Evaluation | None = None
    error: InputError | None = None

    @property
    def verdict(self) -> TrialVerdict:
        """Whether the changed scenario can run."""
        if self.evaluation is None:
            return TrialVerdict.ILLEGAL
        return TrialVerdict.FITS if self.evaluation.fits else TrialVerdict.TOO_LARGE

    @property
    def fits(self) -> bool:
        """Whether the changed scenario is legal and fits."""
        return self.verdict is TrialVerdict.FITS


def try_change(change: Change, scenario: Scenario, evaluator: Evaluator) -> Trial:
    """Evaluate a changed scenario."""
    try:
        return Trial(change, evaluator.evaluate(change.applied_to(scenario)))
    except InputError as error:
        return Trial(change, error=error)


def try_each(
    changes: Iterable[Change],
    scenario: Scenario,
    evaluator: Evaluator,
    on_progress: Callable[[str], None] = lambda description: None,
) -> Iterator[Trial]:
    """Evaluate a scenario with each of some changes.

    Args:
        changes: each is made alone.
        scenario: the unchanged scenario.
        evaluator: evaluates memory, and the time of what fits.
        on_progress: receives a description of each change before its evaluation.
    """
    for change in changes:
        on_progress(f"trying {change.options}")
        yield try_change(change, scenario, evaluator)


def ranked(trials: Iterable[Trial], key: Callable[[Trial], Any]) -> list[Trial]:
    """Return the trials that fit by ascending `key`; equal ones keep their order."""
    return sorted((trial for trial in trials if trial.fits), key=key)


def time_with(change: Change, result: Result) -> float:
    """Return the iteration time of a result's scenario with a change that is legal.

    Raises:
        InputError: the change is illegal.
    """
    evaluator = Evaluator.on(result.seconds.machine, allow_oom=True)
    return evaluator.evaluate(change.applied_to(result.scenario)).iteration_time_s
