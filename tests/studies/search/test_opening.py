"""A search simulates promising layouts first, so that it can be stopped early."""

import re

import pytest

from simtrain.scenario import load_unchecked
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search import SearchResult, search
from simtrain.studies.search.explorer import Explorer
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.opening import simulate_promising
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
    """The first layout simulated takes at most half longer than the best of 207."""
    searched = load_unchecked("table5_22b_present", [])
    whole = search(searched, (8,), top=1)
    first = search(searched, (8,), top=1, interrupted=lambda: True)
    assert first.outcome.num_simulated == 1
    ratio = first.ranked[0].run.iteration_time_s / whole.ranked[0].run.iteration_time_s
    assert 1 <= ratio < 1.5


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


def test_a_ranking_names_a_layout_with_memory_to_spare() -> None:
    whole = search(BASES["narrow"], (4,), top=30)
    peak = whole.ranked[0].evaluation.peak_bytes
    assert not any(line.startswith("Number 1 leaves") for line in notes(whole))
    tight = search(BASES["narrow"], (4,), top=30, max_memory=f"{peak + 2**20} B")
    (line,) = (one for one in notes(tight) if one.startswith("Number 1 leaves"))
    assert line.startswith("Number 1 leaves only 0.00 GiB free. Number ")
    rank, share = map(float, re.findall(r"Number (\d+) takes ([\d.]+) %", line)[0])
    roomy = tight.ranked[int(rank) - 1]
    assert tight.limit_bytes - roomy.evaluation.peak_bytes >= 0.1 * tight.limit_bytes
    slower = roomy.run.iteration_time_s / tight.ranked[0].run.iteration_time_s - 1
    assert share == pytest.approx(100 * slower, abs=0.06)
    (line,) = (
        one
        for one in notes(search(BASES["narrow"], (4,), top=1, max_memory=f"{peak + 2**20} B"))
        if one.startswith("Number 1 leaves")
    )
    assert "For a margin, search with --max-memory " in line
