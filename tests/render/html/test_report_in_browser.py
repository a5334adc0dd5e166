"""A report in Chromium: keys, and the card of a selected number."""

import pathlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pytest

from simtrain.iteration.report.spans import ACTIVITIES, StageStream, windows_of
from simtrain.render.html.document import write_document
from simtrain.render.html.report import ReportedRun, report_document
from tests.helpers.browser import Browser, chromium, needs_chromium
from tests.helpers.toys import run, small
from tests.render.html.printed_tables import is_rounded

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
LONG = run(small().replace({"batch.global": 120, "name": "a_long_name_" * 8}))
CUT = """
await simtrain.timeline.ready;
const width = document.documentElement.clientWidth;
const seen = (each) => each.getBoundingClientRect().right <= width + 1;
const operators = document.querySelector("table[data-table=operators]").parentElement;
return {
  page: document.documentElement.scrollWidth - width,
  captions: [...document.querySelectorAll("caption > span")].filter((each) => !seen(each)).length,
  operators: operators.scrollWidth - operators.clientWidth,
  breakdown: document.querySelector("#breakdown .scroll").scrollWidth - width,
};
"""
PARTS = """
await simtrain.timeline.ready;
const { view } = simtrain.timeline, shown = [[view.start, view.end]];
for (const button of document.querySelectorAll(".timeline [data-part]")) {
  button.click();
  shown.push([view.start, view.end]);
}
return shown;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    file: pathlib.Path = tmp_path_factory.mktemp("report") / "report.html"
    reported = ReportedRun("small", RESULT)
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
    browser.run("document.querySelector('.timeline [data-zoom=all]').click()")
    assert press(browser)["end"] == end_s
    bars = RESULT.bars
    own = bars.where((bars.stage == 1) & (bars.stream == StageStream.OWN))
    first = own.where(np.argsort(own.start_s)[:1])
    words = press(browser, "Escape", "0", "ArrowDown", "ArrowDown")["words"]
    assert words.startswith(f"Stage 1: {ACTIVITIES[first.activity[0]]}")
    assert f"{first.end_s[0]:.9g}"[:8] in words
    assert press(browser, "ArrowRight")["words"] != words
    assert press(browser, "ArrowLeft")["words"] == words
    assert press(browser, "Escape")["words"] == ""
    assert browser.messages() == []


@pytest.fixture
def long_page(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the report on an iteration with a long name and 240 passes per stage."""
    file = tmp_path / "long.html"
    write_document(report_document([ReportedRun("a/path/to/x.yaml", LONG)]), file)
    return file


@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_of_a_page_is_cut(browser: Browser, long_page: pathlib.Path, width: int) -> None:
    before = browser.driver.current_url
    browser.open(long_page, width)
    cut = browser.run(CUT)
    heading = browser.run('return document.querySelector("h1").innerHTML')
    browser.open(pathlib.Path(url2pathname(urlparse(before).path)))
    assert cut["page"] == 0 and cut["captions"] == 0
    assert cut["breakdown"] <= 0
    assert heading.startswith("a_<wbr>long_<wbr>name_<wbr>")
    if width == 1600:
        assert cut["operators"] == 0


def test_buttons_show_the_parts_of_a_long_iteration(
    browser: Browser, long_page: pathlib.Path
) -> None:
    before = browser.driver.current_url
    browser.open(long_page)
    at_first, *shown = browser.run(PARTS)
    browser.open(pathlib.Path(url2pathname(urlparse(before).path)))
    windows = [*windows_of(LONG).values()]
    assert at_first == pytest.approx(windows[0])
    for window, expected in zip(shown, windows, strict=True):
        assert window == pytest.approx(expected)


def test_selecting_a_number_shows_its_value_and_source(browser: Browser) -> None:
    script = """
      document.querySelector(args[0]).click();
      return document.getElementById("source").textContent;
    """
    words = browser.run(script, ".facts data")
    assert repr(RESULT.iteration_time_s) in words
    assert "iteration time" in words and "simtrain run small" in words
    words = browser.run(script, "#breakdown table data")
    assert repr(RESULT.breakdown.compute_s) in words and "the mean over the stages" in words
    assert "simtrain run small --format csv --table breakdown in the column time_s" in words
    words = browser.run(script, "#operators tr:has(a.entry) data")
    assert "Profile entry: " in words and "Row: " in words


def test_the_keyboard_reaches_every_number_of_a_table(browser: Browser) -> None:
    script = """
      document.querySelector("#breakdown .scroll").focus();
      const press = (key) => document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      args[0].forEach(press);
      const card = document.getElementById("source");
      return { words: card.hidden ? "" : card.textContent, tag: document.activeElement.className };
    """
    arrows = ["Enter", "ArrowRight", "ArrowDown", "ArrowLeft"]
    assert "--table breakdown" in browser.run(script, [*arrows, "Enter"])["words"]
    state = browser.run(script, [*arrows, "Enter", "Escape", "Escape"])
    assert state == {"words": "", "tag": "scroll"}


def test_profile_entries_link_to_their_sources(browser: Browser) -> None:
    script = """
      const links = [...document.querySelectorAll("a.entry")];
      const isBroken = (link) => !document.getElementById(decodeURIComponent(link.hash.slice(1)));
      return [links.length, links.filter(isBroken).map((link) => link.hash)];
    """
    count, broken = browser.run(script)
    assert count > 5 and broken == []


def test_numbers_that_scripts_show_are_exact(browser: Browser) -> None:
    press(browser, "Escape", "0", "ArrowDown")
    script = """
      return [...document.querySelectorAll(args[0])]
        .map((number) => [Number(number.value), number.textContent]);
    """
    for places in (".readout data", ".lines data"):
        numbers = browser.run(script, places)
        assert numbers and all(is_rounded(*number) for number in numbers), (places, numbers)
