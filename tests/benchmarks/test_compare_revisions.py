"""The comparison of two revisions' predictions, and its random scenarios."""

import json
import math
from typing import Any

import pytest

from benchmarks.prediction_changes import (
    Change,
    Comparison,
    Verdict,
    changes,
    compare,
    moved_table,
    result_line,
    summary_lines,
)
from benchmarks.random_scenarios import DRAWS, is_legal, legal_scenarios

TIME_S = 0.1 + 0.2
ROUNDED_S = math.nextafter(TIME_S, 1.0)


def only_change(old: Any, new: Any) -> Change:
    (change,) = changes({"figure": old}, {"figure": new})
    return change


def only_part(old: dict[str, float], new: dict[str, float]) -> Change:
    """Return the only change between two breakdowns."""
    (change,) = (one for one in changes(old, new) if one.verdict is not Verdict.SAME)
    return change


def compared(old: Any, new: Any) -> Comparison:
    return compare({"one": json.dumps(old)}, {"one": json.dumps(new)})


@pytest.mark.parametrize("value", [TIME_S, 0.0, 7, True, "0F3", None])
def test_equal_values_are_the_same(value: Any) -> None:
    assert only_change(value, value) == Change("figure", Verdict.SAME)


@pytest.mark.parametrize(("old", "new"), [(TIME_S, ROUNDED_S), (0.0, -0.0), (1e9, 1e9 + 1e-4)])
def test_relative_differences_of_at_most_1e_12_are_rounding(old: float, new: float) -> None:
    change = only_change(old, new)
    assert change.verdict is Verdict.ROUNDING
    assert change.relative == pytest.approx((new - old) / max(new, 1e-300))


@pytest.mark.parametrize(
    ("old", "new", "relative"),
    [
        (2.0, 3.0, 0.5),
        (-2.0, -3.0, -0.5),
        (1.0, 1.0 + 1e-11, 1e-11),
        (0.0, 1e-300, math.inf),
        (10**18, 10**18 + 1, 1e-18),
        (1, 1.0, 0.0),
        (True, 1, None),
        ("0F3", "1F3", None),
        (None, 1.0, None),
    ],
)
def test_other_differences_are_moves(old: Any, new: Any, relative: float | None) -> None:
    change = only_change(old, new)
    expected = None if relative is None else pytest.approx(relative, rel=1e-3)
    assert (change.verdict, change.relative) == (Verdict.MOVED, expected)


def test_rounding_of_a_part_is_relative_to_the_whole_breakdown() -> None:
    old = {"compute": 5.0, "bubble": 0.0}
    assert only_part(old, old | {"bubble": 1e-16}).verdict is Verdict.ROUNDING
    assert only_part(old, old | {"bubble": 1e-10}).verdict is Verdict.MOVED


def test_a_figure_is_named_by_its_keys_without_groups_and_places() -> None:
    record = {"simulate": {"memory": {"stages": [{"buffers_bytes": {"logits": 3}}]}}}
    assert [change.figure for change in changes(record, record)] == ["buffers_bytes.logits"]


def test_keys_of_one_revision_are_neither_the_same_nor_moved() -> None:
    comparison = compared({"a": 1, "old": {"x": 1, "y": 2}}, {"a": 1, "new": [4, 5]})
    assert comparison.differences[Verdict.ONLY_OLD].keys() == {"old.x", "old.y"}
    assert comparison.differences[Verdict.ONLY_NEW]["new"].number == 2
    assert not comparison.differences[Verdict.MOVED] and not comparison.nothing_moved
    assert "exist in one revision only" in result_line(comparison)


def test_lists_of_different_lengths_are_compared_up_to_the_shorter() -> None:
    verdicts = [change.verdict for change in changes([1, 2, 3], [1, 5])]
    assert verdicts == [Verdict.SAME, Verdict.MOVED, Verdict.ONLY_OLD]


def test_an_error_of_one_revision_is_one_difference() -> None:
    comparison = compared({"simulate": {"time_s": 1.0}}, {"simulate": {"error": ["E305"]}})
    assert comparison.differences[Verdict.MOVED].keys() == {"error"}
    assert "1 scenarios raise an error: E305, before: none" in summary_lines(comparison)
    same = compared(*[{"simulate": {"error": ["E305", "E306"]}}] * 2)
    assert same.nothing_moved and same.errors == {("E305, E306", "E305, E306"): 1}


def test_a_figure_has_its_median_and_its_largest_change_with_their_scenario() -> None:
    old = {name: json.dumps({"time_s": 1.0, "bytes": 8}) for name in "abcd"}
    new_s = {"a": 1.1, "b": 1.0, "c": 0.5, "d": 1.2}
    new = {name: json.dumps({"time_s": time_s, "bytes": 8}) for name, time_s in new_s.items()}
    comparison = compare(old, new | {"e": "{}"})
    found = comparison.differences[Verdict.MOVED]["time_s"]
    assert (found.number, found.largest, found.largest_in) == (3, -0.5, "c")
    assert found.median == pytest.approx(0.1)
    assert (comparison.only_new, comparison.largest_in) == (["e"], "c")
    assert result_line(comparison) == "4 scenarios: 1 figure moved, in 3 of them"
    assert moved_table(comparison).row_count == 1


@pytest.mark.parametrize(
    ("new_s", "result"), [(TIME_S, "nothing moved"), (ROUNDED_S, "nothing moved beyond rounding")]
)
def test_the_last_line_is_the_result(new_s: float, result: str) -> None:
    comparison = compared({"time_s": TIME_S}, {"time_s": new_s})
    assert comparison.nothing_moved
    assert list(summary_lines(comparison))[-1] == f"1 scenarios: {result}"


@pytest.mark.parametrize(("kind", "number"), [("random", 400), ("modern", 40)])
def test_random_scenarios_are_legal_and_the_same_for_a_seed(kind: str, number: int) -> None:
    draws = [*DRAWS[kind](number, 0)]
    assert len(draws) == number and all(map(is_legal, draws))
    assert [*DRAWS[kind](10, 0)] == draws[:10] != [*DRAWS[kind](10, 1)]


def test_a_generator_without_legal_scenarios_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.random_scenarios.is_legal", lambda values: False)
    with pytest.raises(RuntimeError, match="0 of 101 random scenarios are legal"):
        list(legal_scenarios(1, seed=0))
