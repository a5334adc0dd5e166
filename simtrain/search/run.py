"""A search from a scenario to its result."""

from __future__ import annotations

from simtrain.evaluation import Evaluator
from simtrain.scenario import Scenario, check_scenario, check_values
from simtrain.search import problems
from simtrain.search.bounds import Bounds
from simtrain.search.exhaustive import exhaustive
from simtrain.search.legality import legal_points, rules_of_base
from simtrain.search.looker import Looker, Tell
from simtrain.search.objective import Objective
from simtrain.search.result import SearchResult
from simtrain.search.sampling import sampled
from simtrain.search.space import Space


def search(
    base: Scenario,
    gpus: tuple[int, ...],
    objective: Objective | str = Objective.TIME,
    *,
    max_memory: str | None = None,
    top: int = 10,
    max_trials: int | None = None,
    tell: Tell = lambda what, done, total: None,
) -> SearchResult:
    """The `top` best ways to train a scenario's model and global batch on any of some numbers of
    GPUs.

    Fields that were changed since the base was loaded or built (`load_unchecked` with overrides,
    `Scenario.replace`) keep their values. `max_memory` ("40 GiB") is what the peak of a GPU may not
    exceed, no more than it has; recompute that stays and is open is chosen to fit in it. Where more
    than `max_trials` configurations are legal, so many are proposed by an optimizer and looked at;
    the result is then not exact.

    Raises:
        InputError: a base with a wrong value or that no split makes legal, too many GPUs for the
            cluster, no legal configuration, no amount of memory, or what is no number or objective.
        DoesNotFitError: no configuration fits.
    """
    check_values(base)
    objective = problems.objective_of(objective)
    problems.check_counts(tuple(gpus), top, max_trials)
    evaluator = Evaluator()
    profile = evaluator.profile_of(base)
    problems.check_gpus(gpus, profile)
    limit_bytes = problems.memory_limit(max_memory, profile)
    space = Space(base, gpus)
    if max_memory is not None:
        space = space.within(max_memory)
    check_scenario(base, rules_of_base(space))
    legal = legal_points(space)
    if not legal.points:
        raise problems.none_legal(space, legal, profile)
    looker = Looker(space, evaluator, objective, limit_bytes)
    # The runner-up is found even where only the best is asked for: to say why it is not the best.
    at_least = max(top, 2)
    if exact := max_trials is None or len(legal.points) <= max_trials:
        seen = exhaustive(looker, Bounds(space.base, profile), legal.points, at_least, tell)
    else:
        seen = sampled(looker, legal.points, max_trials, at_least, tell)
    if not seen.best:
        raise problems.none_fits(looker, seen, profile, exact)
    ranked = seen.best[:top]
    return SearchResult(
        base, space.gpus, objective, limit_bytes, legal, seen, ranked, exact, profile
    )
