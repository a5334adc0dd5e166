"""Functions that move the sliders of a report in a browser."""

import pathlib
from typing import Any

from tests.helpers.browser import Browser

_MOVE = """
const [run, resource, position] = args;
const form = document.querySelectorAll("form.sliders")[run], input = form.elements[resource];
input.value = position;
input.dispatchEvent(new Event("input", { bubbles: true }));
"""
_SHOWN = """
const form = document.querySelectorAll("form.sliders")[args[0]];
const value = (element) => Number(element.querySelector("data").value);
const cells = [...form.querySelectorAll("[data-cause]")];
const parts = [...form.querySelectorAll(".chosen > :not([hidden])")];
return {
  ...Object.fromEntries(
    ["time", "change", "mfu"].map((name) => [name, value(form.elements[name])])),
  positions: Object.fromEntries(
    [...form.querySelectorAll("input")].map(({ name, value }) => [name, Number(value)])),
  causes: Object.fromEntries(cells.map((cell) => [cell.dataset.cause, value(cell)])),
  bar: Object.fromEntries(parts.map((part) => [part.dataset.part, part.clientWidth])),
};
"""


def moved(browser: Browser, run: int, resource: str, position: int) -> dict[str, Any]:
    """Move a slider of a run, and return what the page then shows."""
    browser.run(_MOVE, run, resource, position)
    return shown(browser, run)


def shown(browser: Browser, run: int) -> dict[str, Any]:
    """Return the numbers, the positions of sliders and the widths that the page shows."""
    values: dict[str, Any] = browser.run(_SHOWN, run)
    return values


def assert_quiet(browser: Browser, page: pathlib.Path) -> None:
    """Assert that the console is empty and that the browser read only the file."""
    assert browser.messages() == []
    assert set(browser.requests()) <= {page.as_uri()}


def reset(browser: Browser) -> None:
    """Press the button that restores the simulated cluster of the first run."""
    browser.run("""
        document.querySelector("form.sliders button[type=reset]").click();
        await new Promise((resolve) => setTimeout(resolve));
    """)
