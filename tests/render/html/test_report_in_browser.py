"""A report in Chromium: keys, and the card of a selected number."""

import pathlib
from typing import Any

import numpy as np
import pytest

import simtrain
from simtrain.iteration.report.spans import ACTIVITIES, StageStream
from tests.helpers.browser import Browser, assert_quiet, needs_chromium
from tests.helpers.toys import run, small

pytestmark = [pytest.mark.slow, pytest.mark.ci, needs_chromium]

RESULT = run(small({"interleave": 2}, name="small"))
PRESS = """
await simtrain.timeline.ready;
const canvas = document.querySelector(".timeline .bars");
for (const key of args[0]) {
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}
const { start, end } = simtrain.timeline.view;
return { start, end, words: document.querySelector(".timeline .readout").textContent };
"""
SELECT = """
document.querySelector(args[0]).click();
return document.getElementById("source").textContent;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    return simtrain.report(RESULT, file)


def press(browser: Browser, *keys: str) -> dict[str, Any]:
    state: dict[str, Any] = browser.run(PRESS, [*keys])
    return state


def test_keys_zoom_move_and_read_bars(browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    end_s = RESULT.iteration_time_s
    assert press(browser, "0")["end"] == end_s
    zoomed = press(browser, "+", "+")
    assert np.isclose(zoomed["end"] - zoomed["start"], 0.36 * end_s)
    assert press(browser, "Home")["start"] == 0
    bars = RESULT.bars
    own = bars.where((bars.stage == 1) & (bars.stream == StageStream.OWN))
    first = own.where(np.argsort(own.start_s)[:1])
    words = press(browser, "Escape", "0", "ArrowDown", "ArrowDown")["words"]
    assert words.startswith(f"Stage 1: {ACTIVITIES[first.activity[0]]}")
    assert f"{first.end_s[0]:.9g}"[:8] in words
    assert press(browser, "ArrowRight")["words"] != words
    assert_quiet(browser, page)


def test_selecting_a_number_shows_its_value_and_source(
    browser: Browser, page: pathlib.Path
) -> None:
    browser.open(page)
    assert repr(RESULT.iteration_time_s) in browser.run(SELECT, ".facts data")
    words = browser.run(SELECT, "#breakdown table data")
    assert repr(RESULT.breakdown.compute_s) in words
    assert "simtrain run small --format csv --table breakdown in the column time_s" in words
    assert "Profile entry: " in browser.run(SELECT, "#operators tr:has(a.entry) data")
    assert_quiet(browser, page)
