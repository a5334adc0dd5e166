"""A search from a scenario to its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from simtrain.evaluation import Evaluator
from simtrain.scenario import Scenario, check_scenario, check_values
from simtrain.search import problems
from simtrain.search.exhaustive import exhaustive
from simtrain.search.legality import legal_points, rules_of_base, rules_on
from simtrain.search.looker import Looker, Stopped, Tell
from simtrain.search.objective import Objective
from simtrain.search.result import SearchResult
from simtrain.search.sampling import sampled
from simtrain.search.space import Space
from simtrain.search.workers import Processes, Workers


def search(
    base: Scenario,
    gpus: tuple[int, ...],
    objective: Objective | str = Objective.TIME,
    *,
    context: Sequence[int] | None = None,
    expert: Sequence[int] | None = None,
    max_memory: str | None = None,
    top: int = 10,
    max_trials: int | None = None,
    workers: int = 1,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    tell: Tell = lambda what, done, total, best: None,
    only_best: bool = False,
    evaluator: Evaluator | None = None,
) -> SearchResult:
    """The `top` best ways to train a scenario's model and global batch on any of some numbers of
    GPUs.

    Fields that were changed since the base was loaded or built (`load_unchecked` with overrides,
    `Scenario.replace`) keep their values. Recompute that stays and is open is chosen to fit in
    `max_memory`.

    Args:
        base: model, global batch and cluster.
        gpus: the numbers of GPUs.
        objective: what is to be least (tokens per second: most).
        context: numbers of context-parallel ranks. By default all that leave a rank 4,096 tokens if
            sequences have 32,768 tokens or more, or if the scenario has several; else 1.
        expert: numbers of ranks that hold different experts. By default all that divide the model's
            experts. Each expert is shared by all tensor-parallel ranks, or by none, or as in the
            scenario.
        max_memory: what the peak of a GPU may not exceed ("40 GiB"), no more than it has.
        top: how many to rank.
        max_trials: if more configurations than this are legal, so many are proposed by an
            optimizer and looked at; the result is then not exact.
        workers: processes that find peaks and bounds of configurations; 1 is this process alone.
            The result is the same with any number of them. A script that asks for several needs
            `if __name__ == "__main__":`, because they import it.
        seconds: a budget. When it has been spent, the search ends with the best so far and says
            what is proved of it. What is under way is finished first, and bounds of all legal
            configurations are always found.
        interrupted: asked again and again; True ends the search as a spent budget does.
        tell: told the phase, how much of it is done, of how much, and the best so far.
        only_best: skip what only describes the space: the runner-up, and how many of the points
            that cannot be among the best fit.
        evaluator: one that has timed kernels of the cluster before makes the search faster.

    Raises:
        InputError: a base with a wrong value or that no split makes legal, too many GPUs for the
            cluster, no legal configuration, no amount of memory, or what is no number or objective.
        DoesNotFitError: no configuration fits.
        SearchStoppedError: none that fits was found before the search was stopped.
    """
    start_s = time.monotonic()
    check_values(base)
    objective = problems.objective_of(objective)
    degrees = {"context": context, "expert": expert}
    problems.check_counts(tuple(gpus), top, max_trials, workers, degrees)
    problems.check_budget(seconds)
    evaluator = evaluator or Evaluator()
    profile = evaluator.profile_of(base)
    problems.check_gpus(gpus, profile)
    limit_bytes = problems.memory_limit(max_memory, profile)
    space = Space(base, gpus, context, expert)
    problems.check_degrees(space, degrees)
    if max_memory is not None:
        space = space.within(max_memory)
    check_scenario(base, rules_of_base(space))
    legal = legal_points(space, rules_on(profile))
    if not legal.points:
        raise problems.none_legal(space, legal, profile)
    looker = Looker(space, evaluator, objective, limit_bytes)

    def stop() -> Stopped | None:
        if interrupted():
            return "interrupt"
        is_spent = seconds is not None and time.monotonic() - start_s >= seconds
        return "budget" if is_spent else None

    # The runner-up is found even where only the best is asked for: to say why it is not the best.
    at_least = top if only_best else max(top, 2)
    if max_trials is None or len(legal.points) <= max_trials:
        with _workers(looker, workers) as crew:
            seen = exhaustive(
                looker, crew, legal.points, at_least, tell, stop, counts=not only_best
            )
    else:
        problems.check_alone(workers)
        seen = sampled(looker, legal.points, max_trials, at_least, tell, stop)
    if not seen.best:
        raise problems.none_fits(looker, seen, profile, len(legal.points))
    ranked = seen.best[:top]
    left_out = space.left_out(legal.points)
    sizes = space.gpus, objective, limit_bytes
    return SearchResult(base, *sizes, legal, seen, ranked, profile, left_out)


@contextmanager
def _workers(looker: Looker, number: int) -> Iterator[Workers]:
    """So many workers, of which none outlives the search."""
    if number == 1:
        yield Workers(looker)
        return
    from simtrain.sweep.executors import local_executor

    executor = local_executor(number)
    try:
        yield Processes(looker, executor)
    finally:
        executor.shutdown(cancel_futures=True)
