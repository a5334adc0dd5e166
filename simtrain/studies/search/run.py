"""Run a search: from a request to its result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from simtrain.base.function_caches import without_garbage_collection
from simtrain.base.request import takes
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import check_scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.registry import objective_of
from simtrain.studies.one_layout import refuse_program
from simtrain.studies.search.exact_search import search_all
from simtrain.studies.search.explorer import Candidate, Explorer, SearchOutcome
from simtrain.studies.search.failures import FailedLayout
from simtrain.studies.search.legality import (
    LegalPoints,
    legal_points,
    rules_of_base,
    rules_on,
)
from simtrain.studies.search.no_layout import none_fits, none_legal
from simtrain.studies.search.refinement import Refinement, refine
from simtrain.studies.search.request import SearchRequest, check_alone
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.sampling import search_samples
from simtrain.studies.search.search_end import Stop, stop_after
from simtrain.studies.search.space import Point, Space, is_within
from simtrain.studies.search.variation import check_held, tunable_fields
from simtrain.studies.search.workers import Workers, default_workers
from simtrain.studies.simulation import checked_profile


@takes(SearchRequest)
@without_garbage_collection()
def search(request: SearchRequest) -> SearchResult:
    """Find the `top` best layouts for a scenario's model and global batch.

    Ranked are layouts that surely fit: the 90 % interval of their peak is within the memory. Those
    that are better than the first of these and fit by prediction, but may not fit, are `faster`. If
    no layout surely fits, all that fit by prediction are ranked.

    A layout or a refinement whose evaluation fails is left out, and named in the result.

    Fields that were changed after the base was loaded or built (`load_unchecked` with overrides,
    `Scenario.replace`) keep their values. If one of these leaves recompute open (`auto`), it is
    chosen to fit in what `max_memory` and `margin` leave.

    Raises:
        InputError: the base has a wrong value or is illegal for every split, the cluster has too
            few GPUs, no layout is legal, or an argument is invalid.
        DoesNotFitError: no layout fits.
        SearchStoppedError: a search by trials was stopped before it found a layout that fits.
    """
    stop = stop_after(request.seconds, request.interrupted)
    request.check()
    refuse_program(request.base)
    objective = objective_of(request.objective)
    evaluator = request.evaluator or Evaluator()
    evaluator = replace(
        evaluator, extrapolation=objective.needs_extrapolation, draws=objective.draws
    )
    profile = evaluator.profile_of(request.base)
    limits = request.memory_limits(profile)
    space = request.space(limits)
    check_scenario(request.base, rules_of_base(space))
    explorer = Explorer(space, evaluator, objective, limits.limit_bytes, limits.safe_bytes)
    legal = _legal_points(space, profile)
    outcome = _ranking(explorer, legal, request, stop)
    if not outcome.best:
        raise none_fits(explorer, outcome, profile, len(legal.points))
    refinement = _refinement(explorer, outcome, profile, request, stop) if request.refines else None
    return SearchResult(
        request.base,
        space.gpus,
        objective,
        limits.memory_bytes,
        limits.limit_bytes,
        limits.safe_bytes,
        legal,
        outcome,
        request.top,
        profile,
        space.left_out(legal.points),
        space.varied(legal.points),
        space.held_fields(legal.points, refinement.fields if refinement else ()),
        refinement,
        None if request.only_best else _base_layout(explorer, legal.points),
        tuple(itertools.starmap(FailedLayout.of, explorer.failures.items())),
    )


def _legal_points(space: Space, profile: HardwareProfile) -> LegalPoints:
    """Return the legal layouts; refuse a base without any."""
    legal = legal_points(space, rules_on(profile))
    if not legal.points:
        raise none_legal(space, legal, profile)
    # The cluster's other rules, which every point or none breaks.
    checked_profile(space.scenario(legal.points[0]), profile)
    return legal


def _ranking(
    explorer: Explorer, legal: LegalPoints, request: SearchRequest, stop: Stop
) -> SearchOutcome:
    """Rank the legal layouts: all, or if they are more than `max_trials`, those proposed."""
    top, on_progress, num_legal = request.least_ranked, request.on_progress, len(legal.points)
    if request.max_trials is not None and num_legal > request.max_trials:
        check_alone(request.workers or 1)
        return search_samples(explorer, legal.points, request.max_trials, top, on_progress, stop)
    with _workers(explorer, request.workers or default_workers(num_legal)) as workers:
        return search_all(
            explorer,
            workers,
            legal.points,
            top,
            on_progress,
            stop,
            only_best=request.only_best,
            with_front=request.refines,
        )


@contextmanager
def _workers(explorer: Explorer, number: int) -> Iterator[Workers]:
    """Create workers that end with the search; one worker is this process."""
    if number == 1:
        yield Workers(explorer)
        return
    from simtrain.studies.sweep.executors import local_executor

    executor = local_executor(number)
    try:
        yield Workers(explorer, executor)
    finally:
        executor.shutdown(cancel_futures=True)


def _refinement(
    explorer: Explorer,
    outcome: SearchOutcome,
    profile: HardwareProfile,
    request: SearchRequest,
    stop: Stop,
) -> Refinement:
    """Change single settings of the best layouts; they stay as safe as the ranking is."""
    is_safe = outcome.best[0].peak_bytes <= explorer.safe_bytes
    within = explorer.within(explorer.safe_bytes if is_safe else explorer.limit_bytes)
    fields = _refined_fields(explorer.space, check_held(request.hold))
    of_cluster = rules_on(profile)
    return refine(within, outcome.best, fields, of_cluster, request.on_progress, stop)


def _refined_fields(space: Space, kept: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the settings that a refinement changes: those that nobody holds or varies."""
    changed = [*kept, *space.base.changed_values, *(field for field, _ in space.all_settings[0])]
    return {
        field: values
        for field, values in tunable_fields(space.base).items()
        if not is_within(field, changed)
    }


def _base_layout(explorer: Explorer, legal: Sequence[Point]) -> Candidate | None:
    """Return the base's own layout, if it is one of the searched ones and fits."""
    point = Point.of(explorer.space.base)._replace(settings=explorer.space.settings)
    if point not in legal or not explorer.fits(point) or not explorer.runs(point):
        return None
    (candidate,) = explorer.candidates([point])
    return candidate
