"""Run a search: from a scenario to its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from simtrain.base.garbage_collector import without_garbage_collection
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario, check_scenario, check_values
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.registry import DEFAULT, objective_of
from simtrain.studies.search import problems
from simtrain.studies.search.exhaustive import search_all
from simtrain.studies.search.explorer import Explorer, ProgressCallback, Stopped
from simtrain.studies.search.legality import LegalPoints, legal_points, rules_of_base, rules_on
from simtrain.studies.search.opening import simulate_promising
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.sampling import search_samples
from simtrain.studies.search.space import Space
from simtrain.studies.search.workers import Workers
from simtrain.studies.simulation import checked_profile


@without_garbage_collection()
def search(
    base: Scenario,
    gpus: Sequence[int],
    objective: str = DEFAULT,
    *,
    context: Sequence[int] | None = None,
    expert: Sequence[int] | None = None,
    max_memory: str | None = None,
    margin: str | None = None,
    top: int = 10,
    max_trials: int | None = None,
    workers: int = 1,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_progress: ProgressCallback = lambda what, done, total, best: None,
    only_best: bool = False,
    evaluator: Evaluator | None = None,
) -> SearchResult:
    """Find the `top` best layouts for a scenario's model and global batch.

    Fields that were changed after the base was loaded or built (`load_unchecked` with overrides,
    `Scenario.replace`) keep their values. If one of these leaves recompute open (`auto`), it is
    chosen to fit in what `max_memory` and `margin` leave.

    Args:
        base: model, global batch and cluster.
        gpus: numbers of GPUs to search.
        objective: name of the objective.
        context: numbers of context-parallel ranks. By default 1; for sequences of 32,768 tokens or
            more, or if the scenario has several ranks, all that leave 4,096 tokens per rank.
        expert: numbers of expert-parallel ranks. By default all that divide the model's experts.
            Each expert is sharded over all tensor-parallel ranks, over none, or as in the scenario.
        max_memory: limit of the peak per GPU ("40 GiB"), at most the GPU's capacity.
        margin: memory of this limit that stays free ("4 GiB"); by default none.
        top: length of the ranking.
        max_trials: if more layouts than this are legal, an optimizer proposes this many; the
            result is then not exact.
        workers: processes that compute peaks and bounds; with 1 this process computes them. Their
            number does not change the result. A script with several workers needs
            `if __name__ == "__main__":`, because workers import it.
        seconds: time budget. After it the search returns the best so far and how much is proved of
            it: nothing, if some legal layouts have no bound yet. Evaluations in progress are
            finished. The legal layouts are always listed, and at least one is evaluated.
        interrupted: called repeatedly; True ends the search like a spent budget.
        on_progress: receives the phase, the steps done, the total steps, and the best so far.
        only_best: skip results that only describe the space: the runner-up, and the number of
            other points that fit.
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
    problems.check_counts(gpus, top, max_trials, workers, degrees)
    gpus = tuple(gpus)
    problems.check_budget(seconds)
    evaluator = replace(evaluator or Evaluator(), extrapolation=ranks_by.needs_extrapolation)
    profile = evaluator.profile_of(base)
    problems.check_gpus(gpus, profile, base.cluster)
    limit_bytes = problems.memory_limit(max_memory, margin, profile, base.cluster)
    space = Space(base, gpus, context, expert)
    problems.check_degrees(space, degrees)
    limit = max_memory if margin is None else f"{limit_bytes} B"
    if limit is not None:
        space = space.within(limit)
    check_scenario(base, rules_of_base(space))
    explorer = Explorer(space, evaluator, ranks_by, limit_bytes)
    # Before all layouts are listed, which takes seconds if they are many.
    opening = [] if max_trials else simulate_promising(explorer, profile, on_progress, stop)
    legal = _legal_points(space, profile)
    # The runner-up is needed because the result says why the best is better.
    at_least = top if only_best else max(top, 2)
    if max_trials is None or len(legal.points) <= max_trials:
        with _workers(explorer, workers) as crew:
            outcome = search_all(
                explorer,
                crew,
                legal.points,
                at_least,
                on_progress,
                stop,
                simulated=opening,
                counts=not only_best,
            )
    else:
        problems.check_alone(workers)
        outcome = search_samples(explorer, legal.points, max_trials, at_least, on_progress, stop)
    if not outcome.best:
        raise problems.none_fits(explorer, outcome, profile, len(legal.points))
    return SearchResult(
        base,
        space.gpus,
        ranks_by,
        limit_bytes,
        legal,
        outcome,
        outcome.best[:top],
        profile,
        space.left_out(legal.points),
        space.varied(legal.points),
        space.held_fields(legal.points),
    )


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


def _legal_points(space: Space, profile: HardwareProfile) -> LegalPoints:
    """Return the legal layouts; refuse a base without any."""
    legal = legal_points(space, rules_on(profile))
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
