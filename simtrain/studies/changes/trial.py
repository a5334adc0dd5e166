"""Trials: what changes make of a scenario or of its machine, and which of them is the best.

What a trial evaluates is up to its study: memory and time, the plan of an iteration, a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from simtrain.errors import InputError


class Evaluated(Protocol):
    """What an evaluation returns."""

    @property
    def fits(self) -> bool:
        """Whether it fits in memory."""


C = TypeVar("C")
E = TypeVar("E", bound=Evaluated)


class TrialVerdict(StrEnum):
    """Whether the changed scenario can run."""

    FITS = "fits"
    TOO_LARGE = "does not fit"
    ILLEGAL = "illegal"


@dataclass(frozen=True, slots=True)
class Trial(Generic[C, E]):
    """A change and its evaluation.

    Args:
        change: the change.
        outcome: the evaluation with the change, or the error of an illegal one.
    """

    change: C
    outcome: E | InputError

    @property
    def evaluation(self) -> E:
        """The evaluation with the change.

        Raises:
            InputError: the change is illegal.
        """
        if isinstance(self.outcome, InputError):
            raise self.outcome
        return self.outcome

    @property
    def verdict(self) -> TrialVerdict:
        if isinstance(self.outcome, InputError):
            return TrialVerdict.ILLEGAL
        return TrialVerdict.FITS if self.outcome.fits else TrialVerdict.TOO_LARGE

    @property
    def is_legal(self) -> bool:
        return self.verdict is not TrialVerdict.ILLEGAL

    @property
    def fits(self) -> bool:
        return self.verdict is TrialVerdict.FITS


def try_change(change: C, evaluate: Callable[[C], E]) -> Trial[C, E]:
    """Evaluate a change; `evaluate` raises an `InputError` if the change is illegal."""
    try:
        return Trial(change, evaluate(change))
    except InputError as error:
        return Trial(change, error)


def try_each(changes: Iterable[C], evaluate: Callable[[C], E]) -> Iterator[Trial[C, E]]:
    """Evaluate each of some changes alone, when its trial is read."""
    for change in changes:
        yield try_change(change, evaluate)


def ranked(trials: Iterable[Trial[C, E]], key: Callable[[Trial[C, E]], Any]) -> list[Trial[C, E]]:
    """Return the trials that fit by ascending `key`; equal ones keep their order."""
    return sorted((trial for trial in trials if trial.fits), key=key)
