"""A search simulates promising layouts first, so that it can be stopped early."""

import pytest

from simtrain.scenario import load_unchecked
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search.early_answer import simulate_promising
from simtrain.studies.search.explorer import Explorer
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.run import search
from simtrain.views.search import search_view
from tests.helpers.search_spaces import BASES, EVALUATOR, all_points, space


def silent(phase: str, done: int, total: int, best: str) -> None:
    """Ignore progress."""


def notes(result: SearchResult) -> list[str]:
    return list(search_view(result).sentences)


@pytest.mark.parametrize("name", BASES)
def test_the_core_is_a_part_of_the_space(name: str) -> None:
    searched = space(name)
    whole = all_points(searched)
    core = all_points(searched.core())
    assert core and {*core} <= {*whole}
    assert max(one.zero_stage for one in core) <= max(1, min(one.zero_stage for one in whole))


def test_a_search_stopped_at_once_is_close_to_the_optimum() -> None:
    """The first layout simulated takes at most 0.6 longer than the best of 207."""
    searched = load_unchecked("table5_22b_present", [])
    whole = search(searched, (8,), top=1)
    first = search(searched, (8,), top=1, interrupted=lambda: True)
    assert first.outcome.num_simulated == 1
    ratio = first.ranked[0].run.iteration_time_s / whole.ranked[0].run.iteration_time_s
    assert 1 <= ratio < 1.6


def test_an_opening_skips_layouts_that_do_not_fit() -> None:
    searched = space("narrow")
    points = legal_points(searched).points
    peaks = sorted(EVALUATOR.peak_bytes(searched.scenario(one)) for one in points)
    explorer = Explorer(searched, EVALUATOR, OBJECTIVES["time"], peaks[0])
    profile = EVALUATOR.profile_of(searched.base)
    found = simulate_promising(explorer, profile, silent, lambda: None)
    assert [explorer.peak_bytes(one) for one in found] in ([], [peaks[0]])
    explorer = Explorer(searched, EVALUATOR, OBJECTIVES["time"], peaks[0] - 1)
    assert simulate_promising(explorer, profile, silent, lambda: None) == []


def test_a_gap_that_says_nothing_is_not_printed() -> None:
    result = search(BASES["narrow"], (4,), "memory", top=1, seconds=1e-9)
    assert result.gap is None or result.gap < 1 or "%" not in notes(result)[-1]
