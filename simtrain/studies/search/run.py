"""Run a search: from a scenario to its result."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from simtrain.base.garbage_collector import without_garbage_collection
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario, check_scenario, check_values
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.registry import DEFAULT, objective_of
from simtrain.studies.search import problems
from simtrain.studies.search.exhaustive import search_all
from simtrain.studies.search.explorer import Candidate, Explorer, ProgressCallback
from simtrain.studies.search.failures import FailedLayout
from simtrain.studies.search.legality import (
    LegalPoints,
    legal_points,
    refined_rules_on,
    rules_of_base,
    rules_on,
)
from simtrain.studies.search.opening import simulate_promising
from simtrain.studies.search.refinement import refine
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.sampling import search_samples
from simtrain.studies.search.space import Point, Space, is_within
from simtrain.studies.search.stopping import Stop, Stopped, never
from simtrain.studies.search.variation import Varied, check_held, check_varied, tunable_fields
from simtrain.studies.search.workers import Workers, default_workers
from simtrain.studies.simulation import checked_profile


@without_garbage_collection()
def search(
    base: Scenario,
    gpus: int | Sequence[int],
    objective: str = DEFAULT,
    *,
    context: Sequence[int] | None = None,
    expert: Sequence[int] | None = None,
    max_memory: str | None = None,
    margin: str | None = None,
    allow_risk: float | None = None,
    top: int = 10,
    max_trials: int | None = None,
    workers: int | None = 1,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_progress: ProgressCallback = lambda what, done, total, best: None,
    only_best: bool = False,
    vary: Varied = MappingProxyType({}),
    hold: Sequence[str] = (),
    refines: bool = False,
    evaluator: Evaluator | None = None,
) -> SearchResult:
    """Find the `top` best layouts for a scenario's model and global batch.

    Ranked are layouts that surely fit: the 90 % interval of their peak is within the memory. Those
    that are better than the first of these and fit by prediction, but may not fit, are `faster`. If
    no layout surely fits, all that fit by prediction are ranked.

    A layout or a refinement whose evaluation fails is left out, and named in the result.

    Fields that were changed after the base was loaded or built (`load_unchecked` with overrides,
    `Scenario.replace`) keep their values. If one of these leaves recompute open (`auto`), it is
    chosen to fit in what `max_memory` and `margin` leave.

    Args:
        base: model, global batch and cluster.
        gpus: a number of GPUs, or several, to search.
        objective: name of the objective.
        context: numbers of context-parallel ranks. By default 1; for sequences of 32,768 tokens or
            more, or if the scenario has several ranks, all that leave 4,096 tokens per rank.
        expert: numbers of expert-parallel ranks. By default all that divide the model's experts.
            Each expert is sharded over all tensor-parallel ranks, over none, or as in the scenario.
        max_memory: limit of the peak per GPU ("40 GiB"), at most the GPU's capacity.
        margin: memory of this limit that stays free ("4 GiB"). Layouts that leave it free are
            ranked together, in place of those that surely fit.
        allow_risk: probability from 0 to 1 that a ranked layout may not fit; more than 0.5 ranks
            all that fit by prediction. By default, a layout must surely fit or leave the `margin`.
        top: length of the ranking.
        max_trials: if more layouts than this are legal, an optimizer proposes this many; the
            result is then not exact.
        workers: processes that compute peaks and bounds; with 1 this process computes them. None
            takes one per core if thousands of layouts are legal. Their number does not change the
            result. A script with several workers needs `if __name__ == "__main__":`, because
            workers import it.
        seconds: time budget. After it the search returns the best so far and how much is proved of
            it: nothing, if some legal layouts have no bound yet. Evaluations in progress are
            finished, and at least one layout is evaluated.
        interrupted: called repeatedly; True ends the search like a spent budget.
        on_progress: receives the phase, the steps done, the total steps, and the best so far.
        only_best: skip results that only describe the space: the runner-up, the layouts that are
            better but may not fit, and the number of other points that fit.
        vary: values by field ({"overlap.userbuffers": [True, False]}); None for all values that a
            flag or a choice can have.
        hold: fields and sections that keep the scenario's values.
        refines: also change single settings of the best layouts (`refine`), and look for fast
            layouts that need less memory.
        evaluator: an evaluator with cached kernel times of the cluster makes the search faster.

    Raises:
        InputError: the base has a wrong value or is illegal for every split, the cluster has too
            few GPUs, no layout is legal, or an argument is invalid.
        DoesNotFitError: no layout fits.
        SearchStoppedError: the search was stopped before it found a layout that fits.
    """
    stop = _stop_check(seconds, interrupted)
    check_values(base)
    problems.check_schedule(base)
    ranks_by = objective_of(objective)
    degrees = {"context": context, "expert": expert}
    gpus = problems.as_list(gpus)
    problems.check_counts(gpus, top, max_trials, 1 if workers is None else workers, degrees)
    gpus = tuple(gpus)
    problems.check_budget(seconds)
    evaluator = replace(evaluator or Evaluator(), extrapolation=ranks_by.needs_extrapolation)
    profile = evaluator.profile_of(base)
    problems.check_gpus(gpus, profile, base.cluster)
    memory_bytes = problems.highest_peak(max_memory, profile, base.cluster)
    limit_bytes = problems.less_margin(memory_bytes, margin)
    safe_bytes = problems.safe_peak(memory_bytes, limit_bytes, allow_risk)
    kept = check_held(hold)
    space = Space(base, gpus, context, expert, check_varied(base, vary), kept)
    problems.check_degrees(space, degrees)
    limit = max_memory if margin is None else f"{limit_bytes} B"
    if limit is not None:
        space = space.within(limit)
    check_scenario(base, rules_of_base(space))
    explorer = Explorer(space, evaluator, ranks_by, limit_bytes, safe_bytes)
    # Before all layouts are listed, which takes seconds if they are many.
    # The runner-up is needed because the result says why the best is better.
    at_least = top if only_best else max(top, 2)
    opening: list[Point] = []
    if not max_trials:
        opening = _opening(explorer, profile, on_progress, stop, at_least)
    legal = _legal_points(space, profile, opening, stop if opening else never)
    if max_trials is None or len(legal.points) <= max_trials:
        with _workers(explorer, workers or default_workers(len(legal.points))) as crew:
            outcome = search_all(
                explorer,
                crew,
                legal.points,
                at_least,
                on_progress,
                stop,
                simulated=opening,
                only_best=only_best,
                with_front=refines,
                cut_short=legal.stopped,
            )
    else:
        problems.check_alone(workers or 1)
        outcome = search_samples(explorer, legal.points, max_trials, at_least, on_progress, stop)
    if not outcome.best:
        raise problems.none_fits(explorer, outcome, profile, len(legal.points))
    refinement = None
    if refines:
        fields, of_cluster = _refined_fields(space, kept), refined_rules_on(profile)
        is_safe = outcome.best[0].peak_bytes <= safe_bytes
        within = explorer.within(safe_bytes if is_safe else limit_bytes)
        refinement = refine(within, outcome.best, fields, of_cluster, on_progress, stop)
    return SearchResult(
        base,
        space.gpus,
        ranks_by,
        memory_bytes,
        limit_bytes,
        safe_bytes,
        legal,
        outcome,
        top,
        profile,
        space.left_out(legal.points),
        space.varied(legal.points),
        space.held_fields(legal.points, refinement.fields if refinement else ()),
        refinement,
        None if only_best else _base_layout(explorer, legal.points),
        tuple(itertools.starmap(FailedLayout.of, explorer.failures.items())),
    )


def _opening(
    explorer: Explorer,
    profile: HardwareProfile,
    on_progress: ProgressCallback,
    stop: Stop,
    at_least: int,
) -> list[Point]:
    """Simulate promising layouts whose peak is safe, or if there are none, that fit."""
    for limit_bytes in dict.fromkeys((explorer.safe_bytes, explorer.limit_bytes)):
        within = explorer.within(limit_bytes)
        if opening := simulate_promising(within, profile, on_progress, stop, at_least):
            return opening
    return []


def _base_layout(explorer: Explorer, legal: Sequence[Point]) -> Candidate | None:
    """Return the base's own layout, if it is one of the searched ones and fits."""
    point = Point.of(explorer.space.base)._replace(settings=explorer.space.settings)
    if point not in legal or not explorer.fits(point) or not explorer.runs(point):
        return None
    (candidate,) = explorer.candidates([point])
    return candidate


def _refined_fields(space: Space, kept: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the settings that a refinement changes: those that nobody holds or varies."""
    changed = [*kept, *space.base.changed_values, *(field for field, _ in space.all_settings[0])]
    return {
        field: values
        for field, values in tunable_fields(space.base).items()
        if not is_within(field, changed)
    }


def _stop_check(
    seconds: float | None, interrupted: Callable[[], bool]
) -> Callable[[], Stopped | None]:
    """Return a function that says why the search must stop; its time begins now."""
    start_s = time.monotonic()

    def stop() -> Stopped | None:
        """Return the reason to stop, or None."""
        if interrupted():
            return "interrupt"
        is_spent = seconds is not None and time.monotonic() - start_s >= seconds
        return "budget" if is_spent else None

    return stop


def _legal_points(
    space: Space, profile: HardwareProfile, opening: Sequence[Point], stop: Stop
) -> LegalPoints:
    """Return the legal layouts, at least those of the `opening`; refuse a base without any."""
    legal = legal_points(space, rules_on(profile), stop)
    if legal.stopped:
        legal = replace(legal, points=tuple(dict.fromkeys((*opening, *legal.points))))
    if not legal.points:
        raise problems.none_legal(space, legal, profile)
    # The cluster's other rules, which every point or none breaks.
    checked_profile(space.scenario(legal.points[0]), profile)
    return legal


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
