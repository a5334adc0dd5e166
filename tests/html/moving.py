"""Functions that move the sliders of a report in a browser."""

import pathlib
from typing import Any

from tests.helpers.browser import Browser
from tests.helpers.slider_page import Positions

_MOVE = """
const [run, positions] = args;
const form = document.querySelector(`form.sliders[data-run="/runs/${run}"]`);
const moved = new Promise((resolve) => document.addEventListener("simtrain-times",
  ({ detail }) => resolve(detail), { once: true }));
for (const [name, position] of Object.entries(positions)) {
  const input = form.elements[name];
  if (input) input.value = position;
}
form.querySelector("input").dispatchEvent(new Event("input", { bubbles: true }));
const times = await moved;
const shown = (name) => Number(form.elements[name].firstElementChild.value);
const plain = (columns) =>
  Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, [...column]]));
const { starts, ends } = times;
return { ...plain({ starts, ends, memory: times.memoryTimes() }), bars: plain(times.bars()),
  time: shown("time"), change: shown("change"), mfu: shown("mfu") };
"""
_RESET = """
const form = document.querySelector("form.sliders");
const moved = new Promise((resolve) =>
  document.addEventListener("simtrain-times", resolve, { once: true }));
form.querySelector("button[type=reset]").click();
await moved;
"""


def moved(browser: Browser, run: int, positions: Positions) -> dict[str, Any]:
    """Move the sliders of a run, and return the data that the page then shows."""
    found: dict[str, Any] = browser.run(_MOVE, run, positions)
    return found


def assert_quiet(browser: Browser, page: pathlib.Path) -> None:
    """Assert that the console is empty and that the browser read only the file."""
    assert browser.messages() == []
    assert set(browser.requests()) <= {page.as_uri()}


def reset(browser: Browser) -> None:
    """Press the button that restores the simulated cluster of the first run."""
    browser.run(_RESET)
