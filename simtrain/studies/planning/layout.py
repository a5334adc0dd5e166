"""Search of the best layout on one cluster with one number of GPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from simtrain.errors import DoesNotFitError, InputError, Problem
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.explorer import Candidate, ProgressCallback
from simtrain.studies.search.no_layout import SearchStoppedError
from simtrain.studies.search.run import search
from simtrain.studies.search.search_end import End
from simtrain.units import counted


class Combination(NamedTuple):
    """A cluster and a number of GPUs."""

    cluster: str
    num_gpus: int

    def __str__(self) -> str:
        return f"{self.cluster}, {counted(self.num_gpus, 'GPU')}"


class Status(StrEnum):
    """Whether a combination has a layout, and if not, why."""

    FOUND = "found"
    DOES_NOT_FIT = "does not fit"
    ILLEGAL = "illegal"
    NOT_FOUND = "none found in time"
    NOT_SEARCHED = "not searched"


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """Result of the search on one combination.

    Args:
        status: whether a layout was found, and if not, why.
        best: the best layout, if any was found.
        exact: whether the search proved that no legal layout is better.
        end: why the search ended, if a layout was found.
        gap: upper bound of (iteration time / optimal iteration time) - 1; None without a layout
            or a bound.
        problems: errors of the search, if no layout was found.
    """

    status: Status
    best: Candidate | None = None
    exact: bool = False
    end: End | None = None
    gap: float | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the search was not stopped. Of drawn times it proves nothing all the same."""
        return self.exact or self.end is End.FOUND_DRAWN


NOT_SEARCHED = LayoutResult(Status.NOT_SEARCHED)


@functools.cache
def _evaluator() -> Evaluator:
    """Return this process's evaluator; searches on one cluster share its kernel durations."""
    return Evaluator()


def best_layout(
    base: Scenario,
    num_gpus: int,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_progress: ProgressCallback = lambda what, done, total, best: None,
) -> LayoutResult:
    """Search the fastest layout. With a fixed number of GPUs it is also the cheapest.

    Args:
        base: model, global batch and cluster.
        num_gpus: number of GPUs.
        seconds, interrupted, on_progress: as for `search`.
    """
    try:
        result = search(
            base,
            (num_gpus,),
            top=1,
            seconds=seconds,
            interrupted=interrupted,
            on_progress=on_progress,
            only_best=True,
            evaluator=_evaluator(),
        )
    except SearchStoppedError as error:
        return LayoutResult(Status.NOT_FOUND, problems=error.problems)
    except DoesNotFitError as error:
        return LayoutResult(Status.DOES_NOT_FIT, exact=True, problems=error.problems)
    except InputError as error:
        return LayoutResult(Status.ILLEGAL, exact=True, problems=error.problems)
    outcome = result.outcome
    return LayoutResult(Status.FOUND, outcome.best[0], result.exact, outcome.end, result.gap)
