"""The sliders of a report in Chromium: points equal the engine's, and keys and print work."""

import pathlib
from typing import Any

import pytest

from simtrain.iteration.report.breakdown import breakdown_by_name
from simtrain.iteration.report.result import Result
from simtrain.studies.sensitivity import FACTORS, ResourceCurve
from tests.helpers.browser import Browser, needs_chromium
from tests.helpers.report_cases import CASES
from tests.render.html.moving import assert_quiet, moved, reset, shown

pytestmark = [pytest.mark.slow, pytest.mark.ci, needs_chromium]

Curves = dict[str, tuple[ResourceCurve, ...]]
BASE, LAST = FACTORS.index(1), len(FACTORS) - 1


@pytest.mark.parametrize("name", CASES)
def test_every_position_shows_the_simulated_point_of_one_resource(
    name: str, browser: Browser, page: pathlib.Path, curves: Curves
) -> None:
    browser.open(page)
    number, resources = [*CASES].index(name), [curve.resource for curve in curves[name]]
    for curve in curves[name]:
        for position, point in enumerate(curve.points):
            found = moved(browser, number, curve.resource, position)
            others = dict.fromkeys(resources, BASE)
            assert found["positions"] == others | {curve.resource: position}
            assert found["time"] == point.iteration_time_s
            assert (found["change"], found["mfu"]) == (point.change, point.mfu)
            causes, seconds = breakdown_by_name(point.breakdown), found["causes"]
            assert seconds.pop("iteration") == point.iteration_time_s
            assert seconds.items() <= causes.items()
            assert sum(seconds.values()) == pytest.approx(point.iteration_time_s, rel=1e-9)
            assert found["bar"].keys() == {one for one, time in causes.items() if time}
            assert_in_proportion(found["bar"], causes)
    assert_quiet(browser, page)


def assert_in_proportion(widths: dict[str, int], causes: dict[str, float]) -> None:
    """Assert that each part of a bar is as wide as its time, to the pixels of its border."""
    total_s, total = sum(causes.values()), sum(widths.values())
    for name, width in widths.items():
        assert width == pytest.approx(causes[name] / total_s * total, abs=5)


def test_reset_restores_the_simulated_cluster(
    browser: Browser, page: pathlib.Path, results: dict[str, Result]
) -> None:
    browser.open(page)
    before = shown(browser, 0)
    assert moved(browser, 0, "memory_bandwidth", LAST) != before
    reset(browser)
    after = shown(browser, 0)
    assert after == before
    assert set(after["positions"].values()) == {BASE} and after["change"] == 0
    assert after["time"] == next(iter(results.values())).iteration_time_s
    words = "return document.querySelector('form.sliders').elements.change.textContent"
    assert browser.run(words) == "none"


def test_the_picture_marks_the_chosen_point(browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    chosen = "return [...document.querySelectorAll('.mark.chosen')].map((one) => one.dataset.point)"
    assert browser.run(chosen) == []
    moved(browser, 1, "memory_bandwidth", 0)
    assert browser.run(chosen) == ["memory_bandwidth 0"]


def test_sliders_of_one_run_do_not_change_the_others(browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    before = [shown(browser, run) for run in range(1, len(CASES))]
    moved(browser, 0, "tensor_cores", 0)
    assert [shown(browser, run) for run in range(1, len(CASES))] == before


def test_sliders_move_by_keys_and_announce_their_value(
    browser: Browser, page: pathlib.Path, curves: Curves
) -> None:
    """A screen reader gets a name, and the value in words. Arrow keys move by one position."""
    browser.open(page)
    focused = """const one = document.activeElement;
        return [one.name, one.type, one.value, one.getAttribute("aria-valuetext")]"""
    browser.run("document.querySelector('form.sliders input').focus()")
    first = next(iter(curves.values()))
    order: list[Any] = []
    for _ in range(len(first) + 1):
        order.append(browser.run(focused)[:2])
        browser.press("Tab")
    assert order == [*([curve.resource, "range"] for curve in first), ["", "reset"]]
    browser.run("document.querySelector('form.sliders input[name=memory_bandwidth]').focus()")
    for key, position in (("ArrowRight", BASE + 1), ("End", LAST), ("Home", 0)):
        browser.press(key)
        _, _, value, words = browser.run(focused)
        assert value == str(position) and words.startswith(f"{FACTORS[position]:g}×, ")
        assert words.endswith(" TB/s")
    tree = browser.send("Accessibility.getFullAXTree")["nodes"]
    names = [node["name"]["value"] for node in tree if node["role"]["value"] == "slider"]
    assert names[:2] == ["Tensor cores", "Memory bandwidth"]
    valued = (
        "return [...document.querySelectorAll('.slider input')].map((one) => one.ariaValueText)"
    )
    assert all("×" in words for words in browser.run(valued))
    # Screen readers announce changes of an element with the role "status".
    assert "status" in {node["role"]["value"] for node in tree}


@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_its_window(width: int, browser: Browser, page: pathlib.Path) -> None:
    browser.open(page, width)
    moved(browser, 0, "memory_bandwidth", 0)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    inside = browser.run(
        """return [...document.querySelectorAll(".slider > *, form.sliders .card")]
        .map((one) => one.getBoundingClientRect())
        .every(({ left, right }) => left >= 0 && right <= args[0])""",
        width,
    )
    assert inside


def test_the_page_follows_the_preferred_colour_scheme(browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    colours = """const style = getComputedStyle(document.body);
        return [style.backgroundColor, style.color].map((one) => one.match(/\\d+/g).slice(0, 3)
        .reduce((sum, part) => sum + Number(part), 0))"""
    try:
        for scheme, is_dark in (("light", False), ("dark", True)):
            browser.media(scheme=scheme)
            background, ink = browser.run(colours)
            assert (background < ink) == is_dark and abs(background - ink) > 380
        browser.run("document.getElementById('theme').click()")
        background, ink = browser.run(colours)
        assert background > ink
        assert_quiet(browser, page)
    finally:
        browser.media()


def test_print_shows_text_without_controls(browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    moved(browser, 0, "memory_bandwidth", 0)
    try:
        browser.media("print", "dark")
        is_shown = """return [...document.querySelectorAll(args[0])]
            .map((one) => one.checkVisibility())"""
        assert not any(browser.run(is_shown, "button, input"))
        assert all(browser.run(is_shown, "form.sliders output"))
        assert browser.run("return getComputedStyle(document.body).backgroundColor") in (
            "rgb(255, 255, 255)"
        )
    finally:
        browser.media()
