"""A layout that cannot be evaluated costs its own place in a ranking, and nothing else."""

import functools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from simtrain.engine.deadlock import DeadlockError, Wait
from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.exact_search import search_all
from simtrain.studies.search.explorer import Explorer
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.run import search
from simtrain.studies.search.space import Point
from simtrain.studies.search.workers import Workers
from simtrain.views.search import search_view
from tests.helpers.search_spaces import base, every

ERRORS = [
    DeadlockError([Wait("stage 0", "0F0", (("stage 0", "'0F0' on stage 0"),))]),
    InputError.of("E324", "this layout is refused"),
    IndexError("index 7 is out of bounds"),
]
Fails = Callable[[Scenario], bool]


def is_wide(scenario: Scenario) -> bool:
    """Whether a layout has two tensor-parallel ranks: many of the space have, also the best."""
    return scenario.parallelism.tensor == 2


def failing(monkeypatch: pytest.MonkeyPatch, fails: Fails, error: Exception) -> None:
    """Let the evaluation of some scenarios fail."""
    evaluate = Evaluator.evaluate

    def evaluate_or_fail(self: Evaluator, scenario: Scenario) -> Evaluation:
        if fails(scenario):
            raise error
        return evaluate(self, scenario)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate_or_fail)


@functools.cache
def whole() -> SearchResult:
    return search(base(), (4,), top=1000)


def layouts(result: SearchResult) -> list[tuple[Point | None, float]]:
    return [(layout.point, layout.run.iteration_time_s) for layout in result.ranked]


@pytest.mark.ci
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_other_layouts_keep_their_ranking(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole().exact and not whole().failures
    failing(monkeypatch, is_wide, error)
    result = search(base(), (4,), top=1000)
    left = [layout.point for layout in whole().ranked if not is_wide(layout.scenario)]
    assert 0 < len(left) < len(whole().ranked)
    assert [layout.point for layout in result.ranked] == left
    assert {failure.point for failure in result.failures} == {
        layout.point for layout in whole().ranked if is_wide(layout.scenario)
    }
    assert not result.exact  # nothing is proved about the layouts that failed
    assert all(str(error) in failure.error for failure in result.failures)


@pytest.mark.ci
@pytest.mark.parametrize("place", ["layers_s", "busy_s", "states_bytes", "iteration_s"])
@pytest.mark.parametrize("has_workers", [False, True])
def test_bounds_may_fail_too(
    place: str, has_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, points = every("plain")
    bound = getattr(Bounds, place)

    def bound_or_fail(self: Bounds, plan: Any) -> Any:
        if is_wide(plan.scenario):
            raise ZeroDivisionError("division by zero")
        return bound(self, plan)

    monkeypatch.setattr(Bounds, place, bound_or_fail)
    explorer = Explorer(known.space, Evaluator(), known.objective, known.limit_bytes)
    with ThreadPoolExecutor(1) as executor:
        workers = Workers(explorer, executor if has_workers else None)
        outcome = search_all(
            explorer, workers, points, 1000, lambda *_: None, lambda: None, only_best=True
        )
    ranked = {candidate.point for candidate in outcome.best}
    # A point whose group has no bound has one of its own.
    failing = {point for point in points if point.tensor == 2 and place != "layers_s"}
    assert ranked == {*points} - failing
    assert {*explorer.failures} == failing


def test_a_refinement_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = base(batch={"global": 8})
    failing(monkeypatch, lambda scenario: bool(scenario.overlap.data_parallel), ERRORS[0])
    result = search(scenario, (4,), refines=True)
    assert result.refinement and result.exact  # the ranking is proved; a refinement never is
    assert "overlap.data_parallel" not in result.refinement.changes
    (failure, *_) = result.failures
    assert failure.configuration["overlap.data_parallel"] is True


def test_the_output_names_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, is_wide, ERRORS[0])
    result = search(base(), (4,))
    said = map(str, search_view(result).sentences)
    (sentence,) = [sentence for sentence in said if "failed" in sentence]
    assert "deadlock: 1 streams can never continue" in sentence and "2 x " in sentence
    assert "\n" not in sentence
    data = json.loads(json.dumps(result.to_dict()))
    assert len(data["failures"]) == len(result.failures)
    assert {failure["configuration"]["tensor"] for failure in data["failures"]} == {2}
    assert data["ranked"] and not data["exact"]


def test_a_search_in_which_everything_fails_raises_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, lambda scenario: True, ERRORS[0])
    with pytest.raises(DeadlockError):
        search(base(), (4,))


def test_a_search_by_trials_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    failing(monkeypatch, is_wide, ERRORS[0])
    result = search(base(), (4,), max_trials=20)
    assert result.ranked and result.failures
