"""A report in Chromium: keys, both ways of drawing bars, and the card of a selected number."""

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from simtrain.iteration.report.activities import ACTIVITIES, Bars
from simtrain.render.html.document import write_document
from simtrain.render.html.report import report_document
from simtrain.render.html.run_data import ReportedRun
from simtrain.studies.sensitivity import resource_curves
from tests.helpers.browser import Browser, chromium, needs_chromium
from tests.helpers.toys import run, small
from tests.render.html.moving import moved
from tests.render.html.numbers import data_of, read, wrong_numbers

pytestmark = [pytest.mark.slow, pytest.mark.ci, needs_chromium]

RESULT = run(small({"interleave": 2}))
PRESS = """
await simtrain.timeline.ready;
const canvas = document.querySelector(".timeline .bars");
for (const key of args[0]) {
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}
const { start, end } = simtrain.timeline.view;
return { start, end, words: document.querySelector(".timeline .readout").textContent };
"""
COLOURS = """
await simtrain.timeline.ready;
const chart = simtrain.timeline.charts[0];
if (args[0]) chart.numVisible = () => Infinity;
chart.draw();
const { width, height } = chart.canvas;
const pixels = chart.canvas.getContext("2d").getImageData(0, 0, width, height).data;
const row = chart.rowHeight, sums = [];
for (let stage = 0; stage < chart.num; stage++) {
  const y = Math.round((stage + 0.12) * row), sum = [0, 0, 0];
  for (let x = 70; x < width - 10; x++) {
    for (const at of [0, 1, 2]) sum[at] += pixels[4 * (y * width + x) + at] / (width - 80);
  }
  sums.push(sum);
}
return sums;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    file: pathlib.Path = tmp_path_factory.mktemp("report") / "report.html"
    reported = ReportedRun("small", RESULT, {}, resource_curves(RESULT))
    write_document(report_document([reported]), file)
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        started.open(file)
        yield started


def press(browser: Browser, *keys: str) -> dict[str, Any]:
    found: dict[str, Any] = browser.run(PRESS, [*keys])
    return found


def test_keys_zoom_move_and_read_bars(browser: Browser) -> None:
    end_s = RESULT.iteration_time_s
    assert press(browser, "0")["end"] == end_s
    zoomed = press(browser, "+", "+")
    assert np.isclose(zoomed["end"] - zoomed["start"], 0.36 * end_s)
    assert press(browser, "Home")["start"] == 0
    bars = Bars.of(RESULT)
    own = bars.where((bars.stage == 1) & (bars.row == 0))
    first = own.where(np.argsort(own.start_s)[:1])
    words = press(browser, "Escape", "0", "ArrowDown", "ArrowDown")["words"]
    assert words.startswith(f"Stage 1: {ACTIVITIES[first.activity[0]]}")
    assert f"{first.end_s[0]:.9g}"[:8] in words
    assert press(browser, "ArrowRight")["words"] != words
    assert press(browser, "ArrowLeft")["words"] == words
    assert press(browser, "Escape")["words"] == ""
    assert browser.messages() == []


def test_many_bars_have_the_colours_of_single_bars_on_average(browser: Browser) -> None:
    press(browser, "Escape", "0")
    each, pixels = browser.run(COLOURS, False), browser.run(COLOURS, True)
    assert np.abs(np.array(each) - np.array(pixels)).max() < 12  # outlines and labels differ


def test_selecting_a_number_shows_its_value_and_source(browser: Browser) -> None:
    script = """
      document.querySelector(".cards data").click();
      return document.getElementById("source").textContent;
    """
    words = browser.run(script)
    assert repr(RESULT.iteration_time_s) in words
    assert "simtrain run small --json" in words
    assert "/runs/0/result/iteration_time_s" in words


def test_the_keyboard_reaches_every_number_of_a_table_and_of_a_picture(browser: Browser) -> None:
    script = """
      document.querySelector(args[0]).focus();
      const press = (key) => document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      args[1].forEach(press);
      const card = document.getElementById("source");
      return { words: card.hidden ? "" : card.textContent, tag: document.activeElement.className };
    """
    arrows = ["Enter", "ArrowRight", "ArrowDown", "ArrowLeft"]
    for region, place in (
        ("#breakdown .scroll", "/runs/0/result/iteration_time_s"),
        ("#roofline .chart-box", "/runs/0/operators/operators/"),
    ):
        found = browser.run(script, region, [*arrows, "Enter"])
        assert place in found["words"]
        found = browser.run(script, region, [*arrows, "Enter", "Escape", "Escape"])
        assert found["words"] == "" and found["tag"] in region


def test_every_number_that_scripts_show_has_its_value_and_its_source(browser: Browser) -> None:
    press(browser, "Escape", "0", "ArrowDown")
    for selected in (".cards data", ".chart .mark", ".stack [data-title]", ".readout data"):
        script = """
          const found = document.querySelector(args[0]);
          found.dispatchEvent(new MouseEvent("click", { bubbles: true }));
          return document.documentElement.outerHTML;
        """
        page = browser.run(script, selected)
        shown = read(page)
        assert sum(one.about.get("data-at", "") != "" for one in shown.shown) > 100
        assert wrong_numbers(shown, data_of(page)) == []
    assert any("columns/start_s" in one.about.get("data-at", "") for one in shown.shown)
    moved(browser, 0, "tensor_cores", 0)
    page = browser.run("""
        document.querySelector("form.sliders output data").click();
        return document.documentElement.outerHTML;
    """)
    reader = read(page)
    assert wrong_numbers(reader, data_of(page)) == []
    assert any("/curves/0/points/0/mfu" in one.about.get("data-at", "") for one in reader.shown)
