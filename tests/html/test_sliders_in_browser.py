"""The sliders of a report in Chromium: times equal the engine's, and keys and print work."""

import pathlib
import random

import numpy as np
import pytest

from simtrain.report.result import Result
from simtrain.sliders.grid import BASE, FACTORS
from tests.helpers.browser import Browser, needs_chromium
from tests.helpers.slider_page import CASES, Positions, bars_of, expected, memory_of
from tests.html.moving import assert_quiet, moved, reset

pytestmark = [pytest.mark.slow, pytest.mark.ci, needs_chromium]


@pytest.mark.parametrize("name", CASES)
def test_the_page_computes_the_engines_times(
    name: str, browser: Browser, page: pathlib.Path, results: dict[str, Result]
) -> None:
    browser.open(page)
    number, result, draw = [*CASES].index(name), results[name], random.Random(name)
    sliders = browser.run("return simtrain.data.runs[args[0]].sliders.sliders", number)
    names = [one["name"] for one in sliders]
    single: list[Positions] = [{one: place} for one in names for place in (0, len(FACTORS) - 1)]
    together = [{one: draw.randrange(len(FACTORS)) for one in names} for _ in range(4)]
    for positions in ({}, *single, *together):
        at = dict.fromkeys(names, BASE) | positions
        found, engine = moved(browser, number, at), expected(result, at)
        timeline = engine.timeline
        assert found["time"] == pytest.approx(timeline.makespan_s, rel=1e-9)
        np.testing.assert_allclose(found["starts"], timeline.start_s, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(found["ends"], timeline.end_s, rtol=1e-9)
        np.testing.assert_allclose(found["memory"], memory_of(engine)[0], rtol=1e-9, atol=1e-15)
        change = timeline.makespan_s / result.iteration_time_s - 1
        assert found["change"] == pytest.approx(change, abs=1e-9)
        peak = result.profile.gpu.peak_flops.value * FACTORS[at["compute"]]
        for column, values in bars_of(engine).items():
            np.testing.assert_allclose(found["bars"][column], values, rtol=1e-9, atol=1e-15)
        of_peak = result.model_flops / timeline.makespan_s / result.scenario.num_gpus / peak
        assert found["mfu"] == pytest.approx(of_peak, rel=1e-9)
    assert_quiet(browser, page)


def test_reset_restores_the_simulated_time(
    browser: Browser, page: pathlib.Path, results: dict[str, Result]
) -> None:
    browser.open(page)
    moved(browser, 0, {"memory": len(FACTORS) - 1, "compute": 0})
    reset(browser)
    words = browser.run(
        """const { elements } = document.querySelector("form.sliders");
        return ["time", "change"].map((name) => elements[name].textContent)"""
    )
    result = next(iter(results.values()))
    value = browser.run("return document.querySelector('form.sliders [name=time] data').value")
    assert float(value) == pytest.approx(result.iteration_time_s, rel=1e-9)
    assert words[1] == "none"
    assert set(
        browser.run(
            "return [...document.querySelectorAll('.slider input')].map((one) => one.value)"
        )
    ) == {str(BASE)}


def test_sliders_of_one_run_do_not_change_the_others(browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    others = """const forms = [...document.querySelectorAll("form.sliders")];
        return forms.slice(1).map((one) => one.textContent)"""
    before = browser.run(others)
    moved(browser, 0, {"compute": 0})
    assert browser.run(others) == before


def test_sliders_move_by_keys_and_announce_their_value(
    browser: Browser, page: pathlib.Path
) -> None:
    """A screen reader gets a name, and the value in words. Arrow keys move by one position."""
    browser.open(page)
    focused = """const one = document.activeElement;
        return [one.name, one.type, one.value, one.getAttribute("aria-valuetext")]"""
    browser.run("document.querySelector('form.sliders input').focus()")
    order = []
    for _ in range(5):
        order.append(browser.run(focused)[:2])
        browser.press("Tab")
    expected_order = [[name, "range"] for name in ("compute", "memory", "nvlink", "latency")]
    assert order == [*expected_order, ["", "reset"]]
    browser.run("document.querySelector('form.sliders input[name=memory]').focus()")
    for key, position in (("ArrowRight", BASE + 1), ("End", len(FACTORS) - 1), ("Home", 0)):
        browser.press(key)
        _, _, value, words = browser.run(focused)
        assert value == str(position) and words.startswith(f"{FACTORS[position]:g}×, ")
        assert words.endswith(" TB/s")
    tree = browser.send("Accessibility.getFullAXTree")["nodes"]
    sliders = [node for node in tree if node["role"]["value"] == "slider"]
    names = [node["name"]["value"] for node in sliders]
    assert names[:2] == ["Compute rate", "Memory bandwidth"]
    valued = (
        "return [...document.querySelectorAll('.slider input')].map((one) => one.ariaValueText)"
    )
    assert all("×, " in words for words in browser.run(valued))
    # Screen readers announce changes of an element with the role "status".
    assert "status" in {node["role"]["value"] for node in tree}


@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_its_window(width: int, browser: Browser, page: pathlib.Path) -> None:
    browser.open(page, width)
    moved(browser, 0, {"memory": 0})
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
    moved(browser, 0, {"memory": 7})
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
