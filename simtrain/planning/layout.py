"""The best layout on one cluster with one number of GPUs, or why there is none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from simtrain.errors import DoesNotFitError, InputError, Problem
from simtrain.evaluation import Evaluator
from simtrain.scenario import Scenario
from simtrain.search import search
from simtrain.search.explorer import Candidate, ProgressCallback
from simtrain.search.problems import SearchStoppedError


class Status(StrEnum):
    """Whether a combination of a cluster and a number of GPUs has a layout."""

    FOUND = "found"
    DOES_NOT_FIT = "does not fit"
    ILLEGAL = "illegal"
    NOT_FOUND = "none found in time"
    NOT_SEARCHED = "not searched"


@dataclass(frozen=True, slots=True)
class Layout:
    """What the search of a combination came to.

    Args:
        found: the best layout.
        exact: no legal layout is better.
        gap: how much longer than the optimum the iteration can be, as a share of the optimum; None
            if nothing is found.
        problems: why nothing is found.
    """

    status: Status
    found: Candidate | None = None
    exact: bool = False
    gap: float | None = None
    problems: tuple[Problem, ...] = ()


NOT_SEARCHED = Layout(Status.NOT_SEARCHED)


@functools.cache
def _evaluator() -> Evaluator:
    """One evaluator per process: sizes of a cluster share the durations of kernels."""
    return Evaluator()


def best_layout(
    base: Scenario,
    num_gpus: int,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_progress: ProgressCallback = lambda what, done, total, best: None,
) -> Layout:
    """Search the fastest layout, which for one number of GPUs is also the cheapest.

    Args:
        seconds, interrupted, on_progress: as in `search`.
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
        return Layout(Status.NOT_FOUND, problems=error.problems)
    except DoesNotFitError as error:
        return Layout(Status.DOES_NOT_FIT, exact=True, problems=error.problems)
    except InputError as error:
        return Layout(Status.ILLEGAL, exact=True, problems=error.problems)
    return Layout(Status.FOUND, result.ranked[0], result.exact, result.gap)
