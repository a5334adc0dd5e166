"""A search finds what an enumeration finds, and what it calls proved is, whenever it stops."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simtrain
from simtrain.errors import InputError
from simtrain.hardware.interval import PeakErrors
from simtrain.iteration.memory.report import MemoryFit, surely_fitting_bytes
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.search.exact_search import NUM_FASTER, End, Explorer, Stop, key_of, search_all
from simtrain.studies.search.run import Candidate, SearchResult, search
from simtrain.studies.search.space import Point
from simtrain.studies.simulation import checked_profile
from simtrain.views.search import search_view
from tests.helpers.search_spaces import BASES, base, every, holding, with_memory

GIB = 2**30
Keyed = list[tuple[tuple[float, float], int, Point]]


def peaks_bytes(name: str) -> list[int]:
    explorer, points = every(name)
    return sorted({explorer.peak_bytes(point) for point in points})


def limit_between(name: str, share: float) -> int:
    """Return a memory limit that some layouts fit in; a share of them surely does."""
    peaks = peaks_bytes(name)
    surely = peaks[int(share * (len(peaks) - 1))]
    limit = next(itertools.count(surely, 2**18))
    while surely_fitting_bytes(limit, PeakErrors()) < surely:
        limit += 2**18
    return limit


def enumerated(name: str, limit: int, safe: int) -> tuple[Keyed, Keyed]:
    """Return all layouts with a safe peak, the best first, and the better ones that only fit."""
    explorer, points = every(name)
    keyed = sorted(
        (key_of(explorer.evaluation(point)), number, point)
        for number, point in enumerate(points)
        if explorer.peak_bytes(point) <= limit
    )
    ranked = [each for each in keyed if explorer.peak_bytes(each[2]) <= safe]
    if not ranked:
        return keyed, []
    return ranked, keyed[: keyed.index(ranked[0])]


def points_of(layouts: Sequence[Candidate]) -> list[Point | None]:
    return [layout.point for layout in layouts]


def check(result: SearchResult, name: str) -> None:
    """Assert that both rankings are those of an enumeration."""
    ranked, faster = enumerated(name, result.limit_bytes, result.safe_bytes)
    assert result.exact and result.fastest_exact
    assert points_of(result.ranked) == [point for *_, point in ranked[: len(result.ranked)]]
    assert points_of(result.faster) == [point for *_, point in faster[:NUM_FASTER]]
    assert result.gap == 0 and result.outcome.num_fitting <= len(every(name)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("narrow", "experts"),
        *(
            pytest.param(name, marks=pytest.mark.ci)
            for name in sorted(BASES.keys() - {"narrow", "experts"})
        ),
    ],
)
def test_both_rankings_equal_an_enumeration(name: str) -> None:
    """Without a limit, and with limits that a part surely fits."""
    result = search(BASES[name], 4, top=7)
    check(result, name)
    assert result.outcome.num_simulated < len(every(name)[1])
    for share in (0.0, 0.3, 1.0):
        limit = limit_between(name, share)
        result = search(with_memory(name, limit), 4, top=3)
        check(result, name)
        assert all(each.fit.state is MemoryFit.SURELY for each in result.ranked)
        assert all(each.fit.state is MemoryFit.PERHAPS for each in result.faster)


def ignore(phase: str, done: int, total: int, best: str) -> None:
    """Ignore progress."""


def stop_from(number: int) -> Stop:
    """Return a function that stops a search from a number of calls on."""
    calls = itertools.count()
    return lambda: End.INTERRUPT if next(calls) >= number else None


@pytest.mark.slow
@settings(max_examples=50)
@given(data=st.data())
def test_any_part_of_a_space_is_ranked_exactly_or_says_how_far(data: st.DataObject) -> None:
    """Some of a space's layouts in any order, two limits, a length and steps to stop after."""
    known, points = every("narrow")
    part = data.draw(st.lists(st.sampled_from(points), min_size=1, max_size=40, unique=True))
    peaks = sorted(map(known.peak_bytes, part))
    safe, limit = sorted(data.draw(st.tuples(*[st.sampled_from(peaks)] * 2)))
    top, number = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 120))
    explorer = Explorer(known.space, known.evaluator, limit, safe)
    keyed = sorted(
        (key_of(known.evaluation(point)), place, known.peak_bytes(point), point)
        for place, point in enumerate(part)
        if known.peak_bytes(point) <= limit
    )
    ranked = [point for *_, peak, point in keyed if peak <= safe] or [each[3] for each in keyed]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simtrain.studies.search.exact_search._FIRST_ANSWER", 4)
        first = data.draw(st.sampled_from(part))
        outcome = search_all(explorer, part, top, ignore, stop_from(number), first=first)
    found = [*outcome.best]
    # A search is not stopped before it has simulated a layout that fits.
    assert found and known.peak_bytes(found[0]) <= limit
    assert (outcome.bound is None) == (outcome.num_bounded < len(part))
    if outcome.bound is not None:
        assert outcome.bound <= known.evaluation(ranked[0]).iteration_time_s
    if outcome.stopped is None:
        assert outcome.exact and outcome.faster_exact
    if outcome.exact:
        assert found == ranked[:top]
    if outcome.faster_exact:
        assert [*outcome.faster, *outcome.best][0] == keyed[0][3]
    assert outcome.num_fitting <= outcome.num_seen <= len(part)


def stopped(number: int, **arguments: Any) -> SearchResult:
    calls = itertools.count()
    return search(BASES["narrow"], 4, interrupted=lambda: next(calls) >= number, **arguments)


@pytest.mark.slow
def test_the_best_never_gets_worse_and_the_answer_says_how_close_it_is() -> None:
    """At first nothing is proved, then a distance from the optimum, at last that it is the best."""
    num_bounds = len(every("narrow")[1])
    numbers = 0, num_bounds // 2, num_bounds - 1, num_bounds, 10_000
    results = [stopped(number, top=1) for number in numbers]
    bests = [result.best.iteration_time_s for result in results]
    assert bests == sorted(bests, reverse=True)
    optimum = enumerated("narrow", 2**60, 2**60)[0][0][0][0]
    for result, best in zip(results, bests, strict=True):
        last, is_whole = str(search_view(result).sentences[-1]), result.outcome.stopped is None
        assert best >= optimum and last.startswith("Interrupted. ") is not is_whole
        assert any(words in last for words in ("is not known, because", "can be faster", "Exact"))
        assert ("Exact among" in last) is result.exact
    assert any(result.gap for result in results)
    assert not results[0].exact and results[0].gap is None and results[-1].exact
    data = results[0].to_dict()
    assert (data["exact"], data["stopped"], data["gap"]) == (False, "interrupt", None)
    assert data["lower_bound_iteration_time_s"] is None and data["num_simulated"] == 1


def test_a_finished_search_is_not_stopped() -> None:
    data = search(BASES["narrow"], 4, top=1, seconds=1e6).to_dict()
    assert (data["exact"], data["stopped"], data["gap"]) == (True, None, 0)
    assert data["lower_bound_iteration_time_s"] == data["best"]["iteration_time_s"]
    budget = search(BASES["narrow"], 4, seconds=1e-9)
    assert budget.outcome.stopped == "budget" and len(budget.ranked) == 1


@pytest.mark.slow
def test_the_first_answer_is_the_own_layout_also_of_a_model_with_experts() -> None:
    """It is one of the layouts, and what a search finds is compared with it."""
    own = simtrain.load_scenario("mixtral_8x7b")
    result = search(own, own.num_gpus, top=1, interrupted=lambda: True)
    assert result.base_layout and result.base_layout.evaluation == result.ranked[0].evaluation
    assert result.base_layout.iteration_time_s == simtrain.run(own).iteration_time_s
    wider = search(own, 2 * own.num_gpus, top=1, interrupted=lambda: True).base_layout
    assert wider and wider.scenario.parallelism.data == 2 * own.parallelism.data
    uneven = BASES["uneven"]
    found = search(uneven, 4, top=1)
    assert found.base_layout and found.best.iteration_time_s <= found.base_layout.iteration_time_s
    assert checked_profile(found.base_layout.scenario)


# ------------------------------------------------------------------------- memory


def test_if_nothing_surely_fits_all_that_fit_are_ranked() -> None:
    least = peaks_bytes("narrow")[0]
    result = search(with_memory("narrow", least + 2**20), 4)
    check(result, "narrow")
    assert not result.is_safe and result.ranked and not result.faster


def test_if_nothing_fits_the_nearest_has_the_smallest_peak() -> None:
    known, points = every("narrow")
    explorer = Explorer(known.space, known.evaluator, 1, 1)
    nearest = search_all(explorer, points, 1, ignore, lambda: None).nearest
    assert nearest and known.peak_bytes(nearest) == peaks_bytes("narrow")[0]


# ------------------------------------------------------------------------- failures

FEW = holding(base(), ("recompute",), ("memory", "zero_stage"))

ERRORS = [InputError.of("E324", "this layout is refused"), IndexError("index 7 is out of bounds")]


def is_wide(scenario: Scenario) -> bool:
    """Whether a layout has two tensor-parallel ranks: many of the space have, also the best."""
    return scenario.parallelism.tensor == 2


def failing(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[Scenario], bool], error: Exception
) -> None:
    """Let the evaluation of some scenarios fail."""
    evaluate = Evaluator.evaluate

    def evaluate_or_fail(self: Evaluator, scenario: Scenario) -> Evaluation:
        if fails(scenario):
            raise error
        return evaluate(self, scenario)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate_or_fail)


@functools.cache
def whole() -> SearchResult:
    return search(FEW, 4, top=1000)


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_layout_that_fails_costs_its_own_place_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole().exact and not whole().failures
    failing(monkeypatch, is_wide, error)
    result = search(FEW, 4, top=1000)
    left = [layout.point for layout in whole().ranked if not is_wide(layout.scenario)]
    assert 0 < len(left) < len(whole().ranked)
    assert points_of(result.ranked) == left
    assert {failure.point for failure in result.failures} == {
        layout.point for layout in whole().ranked if is_wide(layout.scenario)
    }
    assert not result.exact  # nothing is proved about the layouts that failed
    (sentence,) = [said for said in map(str, search_view(result).sentences) if "failed" in said]
    assert str(error).partition("\n")[0] in sentence and "2 x " in sentence
    assert "\n" not in sentence
    assert {each["configuration"]["tensor"] for each in result.to_dict()["failures"]} == {2}
