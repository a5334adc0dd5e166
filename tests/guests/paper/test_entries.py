"""Published and simulated numbers: limits, errors, and the list of misses."""

import json

import pytest
from pytest import MonkeyPatch
from rich.console import Console

from simtrain.guests.paper.entries import (
    BYTES,
    PERCENT,
    PaperEntry,
    PaperLimit,
    PaperSection,
    Reproduction,
    Unit,
    published,
)
from simtrain.guests.paper.view import paper_view
from simtrain.render.terminal import terminal_page
from tests.helpers.command_line import call


def sample(simulated: float, limit: PaperLimit | None) -> Reproduction:
    entry = PaperEntry(("22B",), 100.0, simulated, limit)
    return Reproduction(
        "a figure", (PaperSection("bytes of it", BYTES, ("model",), (entry,), "why"),)
    )


@pytest.mark.parametrize(
    ("limit", "ours", "text"),
    [
        (PaperLimit.exactly(100), (100,), "exact"),
        (PaperLimit.near(100, 1e-12), (100,), "exact"),
        (PaperLimit.within(100, 0.25), (99.75, 100, 100.25), "100 ± 0.25 bytes"),
        (PaperLimit.within(100, 5), (95, 100, 105), "95 to 105"),
        (PaperLimit.near(100, 0.05), (95, 100, 105), "95 to 105"),
        (PaperLimit(highest=100), (-1, 100), "at most 100"),
        (PaperLimit(lowest=100), (100, 1e9), "at least 100"),
    ],
)
def test_a_limit_includes_its_bounds_and_nothing_beyond(
    limit: PaperLimit, ours: tuple[float, ...], text: str
) -> None:
    assert limit.text(BYTES) == text
    assert all(limit.holds(value) for value in ours)
    assert not limit.holds(89) or limit == PaperLimit(highest=100)
    assert not limit.holds(111) or limit == PaperLimit(lowest=100)
    assert not limit.holds(float("nan"))
    assert sample(100, limit).ok


def test_a_column_of_limits_is_shown_only_if_limits_differ_from_the_paper() -> None:
    exact, wide = (
        drawn(sample(100, limit)) for limit in (PaperLimit.exactly(100), PaperLimit.near(100, 1))
    )
    assert "allowed" in wide and "all 1 figures with limits are within them" in wide
    assert "allowed" not in exact and "exact" not in exact
    assert "Each value must equal the paper's." in exact
    assert "OK: all 1 figures equal the paper's" in exact


def drawn(reproduction: Reproduction) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(terminal_page(paper_view(reproduction)))
    return capture.get()


def test_a_value_outside_its_limit_is_listed_as_a_miss() -> None:
    missed = sample(101, PaperLimit.exactly(100))
    assert not missed.ok
    assert missed.misses == ("bytes of it, 22B: 101 bytes (allowed: exact)",)
    assert missed.to_dict()["rows"][0]["within"] is False
    assert sample(101, None).ok and sample(101, None).num_judged == 0


def test_errors_are_relative_except_for_fractions_and_published_zeros() -> None:
    def error(unit: Unit, published: float | None, simulated: float) -> float | None:
        entry = PaperEntry(("x",), published, simulated)
        return PaperSection("", unit, ("of",), (entry,), "").error(entry)

    assert error(BYTES, 200.0, 210.0) == pytest.approx(0.05)
    assert error(PERCENT, 0.2, 0.21) == pytest.approx(0.01)
    assert error(BYTES, 0.0, 3.0) == 3.0
    assert error(BYTES, None, 3.0) is None


def test_a_changed_published_value_is_a_miss_with_exit_code_4(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(published("fig1")["sections"]["states"]["paper"], "22B", 40)
    page, data = call("reproduce", "fig1"), call("reproduce", "fig1", "--format=json")
    assert (page.exit_code, data.exit_code) == (4, 4)
    assert page.stdout.splitlines()[-1] == "FAILED: 1 of 28 figures beyond their limits"
    (miss,) = json.loads(data.stdout)["misses"]
    assert ", 22B: " in miss and " 40" in miss
    assert "beyond its limit: parameters" in page.stdout
    assert json.loads(data.stdout)["ok"] is False
