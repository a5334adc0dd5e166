"""The page of `reproduce explore` in Chromium: its bytes equal the engine's at all positions."""

import pathlib
import random
from typing import Any

import pytest

from simtrain.guests.paper.explore import PAGE
from simtrain.guests.paper.layer import RECOMPUTES, VARIABLES, saved_bytes, sized_scenario
from simtrain.guests.paper.models import BASELINE, MODELS, paper_scenario
from simtrain.render.html.document import write_document
from tests.helpers.browser import Browser, assert_quiet, needs_chromium
from tests.helpers.explore_page import VALUES, legal, small_document

pytestmark = [pytest.mark.slow, pytest.mark.ci, needs_chromium]

SLIDE = """
for (const [name, position] of Object.entries(args[0])) {
  const input = document.getElementById(`layer-${name}`);
  input.value = position;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}
"""
CLICK = "document.querySelector(`input[name=${args[0]}][value='${args[1]}']`).click()"
BYTES = "return Number(document.getElementById('layer-bytes').value)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("explore") / "explore.html"
    write_document(small_document(), file)
    return file


def test_bytes_on_the_page_equal_a_recorded_layer(browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    draw = random.Random(5)
    for number in range(18):
        positions = {name: draw.randrange(len(VALUES[name])) for name in VARIABLES}
        browser.run(SLIDE, positions)
        recompute, sequence = RECOMPUTES[number % 3], bool(number % 2)
        browser.run(CLICK, "layer-recompute", recompute)
        browser.run(
            "const one = document.getElementById('layer-sequence'); "
            "if (one.checked !== args[0]) one.click()",
            sequence,
        )
        sizes = legal({name: VALUES[name][place] for name, place in positions.items()})
        shown = browser.run(
            "return args[0].map((name) => document.querySelector(`[for=layer-${name}]`)"
            ".parentElement.querySelector('output').textContent)",
            [*sizes],
        )
        assert shown == [f"{size:,}" for size in sizes.values()]
        how: dict[str, Any] = {"sequence_parallel": sequence and sizes["t"] > 1}
        scenario = sized_scenario(sizes, **how, recompute=recompute)
        assert browser.run(BYTES) == saved_bytes(scenario)
        rows = browser.run(
            "return [...document.querySelectorAll('[data-tensor] .words data')]"
            ".map(({ value }) => Number(value)).reduce((sum, one) => sum + one, 0)"
        )
        assert rows == saved_bytes(scenario)
    assert_quiet(browser, page)


@pytest.mark.parametrize("model", MODELS)
def test_steps_equal_the_rows_of_table_2(model: str, browser: Browser, page: pathlib.Path) -> None:
    browser.open(page)
    browser.run(CLICK, "layer-model", model)
    for step in reversed(PAGE["step"]):
        browser.run(CLICK, "layer-step", step)
        overrides = ("parallelism.tensor=1",) if step == "alone" else ()
        scenario = paper_scenario(model, BASELINE if step == "alone" else step, *overrides)
        assert browser.run(BYTES) == saved_bytes(scenario)
    crossing = browser.run("return Number(document.querySelector('#crossing-words data').value)")
    expected = {"22B": 652.8, "175B": 870.4, "530B": 1088.0, "1T": 1088.0}[model]
    assert crossing == pytest.approx(expected, rel=1e-12)
    assert_quiet(browser, page)
