"""The published tables, and how close the program comes to them.

All tests that simulate Table 5 stand in this file, so that each run is simulated once.
"""

from typing import Any

import pytest

from simtrain import paper
from simtrain.paper.comparison import Comparison, Row

# Korthikanti et al. 2022, Tables 3 and 5, typed a second time.
SHAPES = {
    "22B": (6144, 48, 4, 8),
    "175B": (12288, 96, 64, 64),
    "530B": (20480, 105, 280, 280),
    "1T": (25600, 128, 512, 512),
}
"""Hidden size, layers, global batch, GPUs."""
TABLE5 = {
    "22B": (1.42, 1.10, 41.5, 42.2, 29.0),
    "175B": (18.13, 13.75, 51.4, 51.8, 31.8),
    "530B": (49.05, 37.83, 56.0, 56.4, 29.7),
    "1T": (94.42, 71.49, 56.3, 56.5, 32.1),
}
"""Full recompute and present work in seconds, MFU, HFU and throughput gain in percent."""
SEQUENCE, VOCABULARY, PEAK = 2048, 51200, 312e12
ROUNDED_S = 0.005


@pytest.fixture(scope="module")
def table4() -> Comparison:
    return paper.table4()


@pytest.fixture(scope="module")
def table5() -> Comparison:
    return paper.table5()


@pytest.fixture(scope="module")
def dp530b() -> Comparison:
    return paper.dp530b()


def utilization(model: str, seconds: float, *, hardware: bool) -> float:
    h, layers, batch, gpus = SHAPES[model]
    again = SEQUENCE / (18 * h) if hardware else 0
    bracket = 1 + SEQUENCE / (6 * h) + VOCABULARY / (12 * h * layers) + again
    return 72 * batch * layers * SEQUENCE * h**2 * bracket / (seconds * gpus * PEAK)


@pytest.mark.parametrize("model", TABLE5)
def test_published_utilization_follows_from_published_times(model: str) -> None:
    """Within what rounding the time to 10 ms and the percentage to 0.1 leaves open."""
    _, present_s, mfu, hfu, _ = TABLE5[model]
    for percent, hardware in ((mfu, False), (hfu, True)):
        low = 100 * utilization(model, present_s + ROUNDED_S, hardware=hardware) - 0.05
        high = 100 * utilization(model, present_s - ROUNDED_S, hardware=hardware) + 0.05
        assert low <= percent <= high


@pytest.mark.parametrize("model", TABLE5)
def test_published_gain_follows_from_published_times(model: str) -> None:
    full_s, present_s, _, _, gain = TABLE5[model]
    low = (full_s - ROUNDED_S) / (present_s + ROUNDED_S) - 1
    high = (full_s + ROUNDED_S) / (present_s - ROUNDED_S) - 1
    assert 100 * low - 0.05 <= gain <= 100 * high + 0.05


def test_table5_is_typed_as_the_paper_has_it(table5: Comparison) -> None:
    expected = [
        (model, strategy, seconds)
        for model, (full_s, present_s, *_) in TABLE5.items()
        for strategy, seconds in (("full", full_s), ("selective+sequence", present_s))
    ]
    assert [(row.model, row.strategy, row.paper_s) for row in table5.rows] == expected
    assert [(g.model, 100 * g.paper) for g in table5.gains] == [
        (model, pytest.approx(gain)) for model, (*_, gain) in TABLE5.items()
    ]


def test_table5_within_the_stated_thresholds(table5: Comparison) -> None:
    assert table5.mean_abs_error <= 0.015
    assert table5.max_abs_error <= 0.03
    assert table5.ok


def test_gains_are_near_the_papers(table5: Comparison) -> None:
    """Within 1.5 points but for the 530B model, which is 0.1 further off (docs/validation.md)."""
    beyond = {gain.model for gain in table5.gains if not gain.within}
    assert beyond == {"530B"}
    assert all(abs(gain.error) <= 0.017 for gain in table5.gains)


@pytest.mark.parametrize("model", TABLE5)
def test_simulated_utilization_follows_from_simulated_time(model: str, table5: Comparison) -> None:
    row = next(r for r in table5.rows if (r.model, r.strategy) == (model, "selective+sequence"))
    assert row.facts["mfu"] == pytest.approx(
        utilization(model, row.simulated_s, hardware=False), rel=1e-12
    )
    assert row.facts["hfu"] == pytest.approx(
        utilization(model, row.simulated_s, hardware=True), rel=1e-12
    )


def test_data_parallelism(dp530b: Comparison, table5: Comparison) -> None:
    """39.15 s within 2 %; overlapping the all-reduce wins back most of what it costs."""
    (row,) = dp530b.rows
    assert row.paper_s == 39.15
    assert abs(row.error) <= 0.02
    times = {(r.model, r.strategy): r.simulated_s for r in table5.rows}
    alone_s = times["530B", "selective+sequence"]
    assert alone_s < row.facts["overlapped_s"] < row.simulated_s
    assert row.facts["overlapped_s"] - alone_s < 0.5 * (row.simulated_s - alone_s)
    assert row.facts["overlapped_s"] < 1.015 * alone_s


def test_table4(table4: Comparison) -> None:
    published_ms = [7.7, 11.9, 7.2, 11.8, 7.7, 19.5, 7.7, 13.2, 7.2, 13.1]
    assert [row.paper_s for row in table4.rows] == [ms / 1e3 for ms in published_ms]
    assert [row.facts["pass"] for row in table4.rows] == ["forward", "backward"] * 5
    assert table4.mean_abs_error <= 0.02
    assert table4.max_abs_error <= 0.04


def test_sequence_parallelism_is_faster_as_measured(table4: Comparison) -> None:
    times = {(row.strategy, row.facts["pass"]): row.simulated_s for row in table4.rows}
    for without, with_ in (("baseline", "sequence"), ("selective", "selective+sequence")):
        for one_way in ("forward", "backward"):
            assert times[with_, one_way] < times[without, one_way]


def test_recompute_costs_what_it_runs_again(table4: Comparison) -> None:
    backward = {
        row.strategy: row.simulated_s for row in table4.rows if row.facts["pass"] == "backward"
    }
    assert backward["baseline"] < backward["selective"] < backward["full"]


def test_json_of_a_comparison(table4: Comparison) -> None:
    data: dict[str, Any] = table4.to_json()
    assert data["mean_abs_error"] == table4.mean_abs_error
    assert data["max_abs_error"] == table4.max_abs_error
    first = data["rows"][0]
    assert {"model", "strategy", "pass", "paper_s", "simulated_s", "error"} == set(first)
    assert first["error"] == first["simulated_s"] / first["paper_s"] - 1


def test_a_missed_threshold_is_said() -> None:
    rows = [Row("toy", "full", 1.0, 1.02), Row("toy", "full", 1.0, 1.05)]
    missed = Comparison("toy", rows, mean_threshold=0.03, max_threshold=0.04)
    assert not missed.ok
    assert missed.misses == ("mean |error| 3.50% above 3.00%", "largest |error| 5.00% above 4.00%")
