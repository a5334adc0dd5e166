"""Layouts that surely fit are ranked apart from those that may not; both rankings are exact."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.iteration.memory.fit import FitVerdict, MemoryFit, surely_fitting_bytes
from simtrain.iteration.plan import Plan
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search.exact_search import search_all
from simtrain.studies.search.explorer import NUM_FASTER, Candidate, Explorer
from simtrain.studies.search.memory_limits import less_margin, safe_peak
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.run import search
from simtrain.studies.search.search_end import End
from simtrain.studies.search.space import Point
from simtrain.studies.search.workers import Workers
from tests.helpers.search_spaces import BASES, EVALUATOR, every

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
    while surely_fitting_bytes(limit) < surely:
        limit += 2**18
    return limit


def enumerated(name: str, objective: str, limit: int, safe: int) -> tuple[Keyed, Keyed]:
    """Return all layouts with a safe peak, the best first, and the better ones that only fit."""
    explorer, points = every(name)
    key_of = OBJECTIVES[objective].key
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


def check(result: SearchResult, name: str, objective: str) -> None:
    """Assert that both rankings are those of an enumeration."""
    ranked, faster = enumerated(name, objective, result.limit_bytes, result.safe_bytes)
    assert result.exact and result.fastest_exact
    assert points_of(result.ranked) == [point for *_, point in ranked[: len(result.ranked)]]
    assert points_of(result.faster) == [point for *_, point in faster[:NUM_FASTER]]
    assert result.gap == 0 and result.outcome.num_fitting <= len(every(name)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("narrow", "memory"),
        ("narrow", "time"),
        ("interleaved", "time"),
        ("experts", "tokens_per_s"),
    ],
)
def test_both_rankings_equal_an_enumeration(name: str, objective: str) -> None:
    """No layout that surely fits beats number 1; none that may fit beats the fastest."""
    num_faster = 0
    for share in (0.0, 0.3, 1.0):
        limit = limit_between(name, share)
        result = search(BASES[name], (4,), objective, top=3, max_memory=f"{limit} B")
        check(result, name, objective)
        assert all(result.fit_of(each).state is MemoryFit.SURELY for each in result.ranked)
        assert all(result.fit_of(each).state is MemoryFit.PERHAPS for each in result.faster)
        fitting = [peak for peak in map(every(name)[0].peak_bytes, every(name)[1]) if peak <= limit]
        assert result.outcome.num_fitting == len(fitting)
        num_faster += len(result.faster)
    assert num_faster > 0 or objective == "memory"


@pytest.mark.slow
def test_a_large_search_ranks_apart_as_exactly() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simtrain.studies.search.exact_search._MOST_COUNTED", 0)
        for share in (0.1, 0.6):
            limit = limit_between("narrow", share)
            check(search(BASES["narrow"], (4,), max_memory=f"{limit} B"), "narrow", "time")


def no_bound_of_memory(explorer: Explorer, plan: Plan, limit_bytes: float = 0.0) -> int:
    """Return the loosest bound of a peak that a search has: the model states."""
    return explorer.bounds.states_bytes(plan)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_loose_bounds_of_memory_change_nothing(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts that seem to fit surely turn out not to, and are ranked apart all the same."""
    limit = limit_between("narrow", share)
    monkeypatch.setattr(Explorer, "_least_peak_bytes", no_bound_of_memory)
    check(search(BASES["narrow"], (4,), top=3, max_memory=f"{limit} B"), "narrow", "time")


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("is_loose", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_what_a_stopped_search_calls_exact_is(
    share: float, is_loose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, calls = limit_between("narrow", share), itertools.count()
    if is_loose:
        monkeypatch.setattr(Explorer, "_least_peak_bytes", no_bound_of_memory)

    def stopped(number: float) -> SearchResult:
        return search(
            BASES["narrow"],
            (4,),
            top=3,
            max_memory=f"{limit} B",
            interrupted=lambda: next(calls) >= number,
        )

    stopped(math.inf)
    num_calls, calls = next(calls), itertools.count()
    ranked, faster = enumerated("narrow", "time", limit, surely_fitting_bytes(limit))
    for number in range(0, num_calls, max(num_calls // 8, 1)):
        calls = itertools.count()
        result = stopped(number)
        if result.exact:
            assert points_of(result.ranked) == [point for *_, point in ranked[:3]]
        proved = min(result.outcome.num_proved, len(result.ranked))
        assert points_of(result.ranked[:proved]) == [point for *_, point in ranked[:proved]]
        if result.fastest_exact:
            fastest = [*result.faster, *result.ranked][0]
            assert fastest.point == [*faster, *ranked][0][2]
        if result.outcome.bound is not None:
            assert result.outcome.bound <= ranked[0][0][0]


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_any_part_of_a_space_is_ranked_exactly_or_says_how_far(data: st.DataObject) -> None:
    """Some of a space's layouts, two limits, a length and a number of steps to stop after."""
    known, points = every("narrow")
    part = data.draw(st.lists(st.sampled_from(points), min_size=1, max_size=40, unique=True))
    peaks = sorted(map(known.peak_bytes, part))
    safe, limit = sorted(data.draw(st.tuples(*[st.sampled_from(peaks)] * 2)))
    top, number = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 120))
    objective = OBJECTIVES[data.draw(st.sampled_from(["time", "memory"]))]
    explorer = known.within(limit)
    explorer.safe_bytes, explorer.objective = safe, objective
    keyed = sorted(
        (objective.key(known.evaluation(point)), place, known.peak_bytes(point), point)
        for place, point in enumerate(part)
        if known.peak_bytes(point) <= limit
    )
    ranked = [point for *_, peak, point in keyed if peak <= safe]
    stop = functools.partial(stop_from, number, count())
    outcome = search_all(explorer, Workers(explorer), part, top, ignore, stop)
    found = points_of(outcome.best)
    if outcome.stopped is None:
        assert outcome.exact and outcome.faster_exact and outcome.num_fitting == len(keyed)
    if outcome.exact:
        assert found == ranked[:top]
    assert found[: outcome.num_proved] == ranked[: min(outcome.num_proved, len(found))]
    if found and outcome.faster_exact:
        assert points_of([*outcome.faster, *outcome.best])[0] == keyed[0][3]
    if outcome.bound is not None and ranked:
        assert outcome.bound <= objective.key(known.evaluation(ranked[0]))[0]


@pytest.mark.slow
def test_nothing_is_proved_while_a_layout_may_surely_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first layouts that are simulated may only fit."""
    limit = limit_between("narrow", 0.1)
    known, points = every("narrow")
    safe = surely_fitting_bytes(limit)
    ranked, _ = enumerated("narrow", "time", limit, safe)

    def risky_first(groups: Sequence[Sequence[Point]], base: Point) -> list[int]:
        peaks = [min(map(known.peak_bytes, group)) for group in groups]
        return sorted(range(len(groups)), key=lambda number: (peaks[number] <= safe, number))

    monkeypatch.setattr(Explorer, "_least_peak_bytes", no_bound_of_memory)
    monkeypatch.setattr("simtrain.studies.search.workers._order", risky_first)
    num_risky = 0
    for number in range(0, 40, 3):
        explorer, calls = Explorer(known.space, EVALUATOR, known.objective, limit, safe), count()
        stop = functools.partial(stop_from, number, calls)
        outcome = search_all(explorer, Workers(explorer), points, 1, ignore, stop)
        if outcome.best[0].peak_bytes > safe:
            num_risky += 1
            assert not outcome.exact and outcome.num_proved == 0
        if outcome.bound is not None:
            assert outcome.bound <= ranked[0][0][0]
    assert num_risky


def ignore(phase: str, done: int, total: int, best: str) -> None:
    """Ignore progress."""


def stop_from(number: int, calls: Iterator[int]) -> End | None:
    """Return a reason to stop from a number of calls on."""
    return End.INTERRUPT if next(calls) >= number else None


def test_if_nothing_surely_fits_all_that_fit_are_ranked() -> None:
    least = peaks_bytes("narrow")[0]
    result = search(BASES["narrow"], (4,), max_memory=f"{least + 2**20} B")
    check(result, "narrow", "time")
    assert not result.is_safe and result.ranked and not result.faster
    assert all(result.fit_of(each).state is MemoryFit.PERHAPS for each in result.ranked)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("risk", [0.0, 0.01, 0.05, 0.2, 0.45, 0.5, 1.0])
def test_an_allowed_risk_ranks_what_has_it_and_no_more(risk: float) -> None:
    limit = limit_between("narrow", 0.5)
    result = search(BASES["narrow"], (4,), top=50, max_memory=f"{limit} B", allow_risk=risk)
    check(result, "narrow", "time")
    if result.is_safe:
        assert all(1 - result.fit_of(each).probability <= risk for each in result.ranked)
    assert all(1 - result.fit_of(each).probability > risk for each in result.faster)


def test_a_margin_replaces_the_interval() -> None:
    limit = limit_between("narrow", 0.3)
    result = search(BASES["narrow"], (4,), max_memory=f"{limit} B", margin="1 MiB")
    assert result.limit_bytes == result.safe_bytes == limit - 2**20 and not result.faster
    check(result, "narrow", "time")
    both = search(BASES["narrow"], (4,), max_memory=f"{limit} B", margin="1 MiB", allow_risk=0.05)
    assert both.limit_bytes == limit - 2**20 > both.safe_bytes


@settings(max_examples=40)
@given(st.integers(1, 200 * GIB), st.floats(0, 1))
def test_a_safe_peak_is_the_largest_with_the_risk(memory: int, risk: float) -> None:
    safe = safe_peak(memory, memory, risk)
    assert 0 <= safe <= memory
    risks = (1 - FitVerdict(peak, memory).probability for peak in (max(safe, 1), safe + 1))
    within, above = risks
    assert (safe == 0 or within <= risk) and (safe == memory or above > risk)


def test_surely_fits_is_a_risk_of_one_in_twenty() -> None:
    memory = 80 * GIB
    default = safe_peak(memory, less_margin(memory, None), None)
    assert default == surely_fitting_bytes(memory)
    assert abs(safe_peak(memory, memory, 0.05) - default) <= 2


@pytest.mark.parametrize("risk", [-0.1, 1.5, float("nan"), "0.3", True])
def test_a_risk_is_a_probability(risk: Any) -> None:
    with pytest.raises(InputError, match=r"(?s)--allow-risk: E834 allow_risk is .* from 0 to 1"):
        search(BASES["narrow"], (4,), allow_risk=risk)


def test_a_refined_layout_fits_as_surely_as_the_ranking() -> None:
    hold = ("parallelism.pipeline", "batch.micro", "memory.zero_stage", "parallelism.tensor")
    free = search(BASES["plain"], (4,), top=1, hold=hold, refines=True)
    assert free.refinement and free.refinement.changes
    peak = free.ranked[0].peak_bytes
    limit = next(each for each in range(peak, 2 * peak, 2**16) if surely_fitting_bytes(each) > peak)
    result = search(BASES["plain"], (4,), top=1, hold=hold, refines=True, max_memory=f"{limit} B")
    assert result.refinement and result.fit_of(result.refinement.layout).fits_surely
