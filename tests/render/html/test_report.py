"""Reports on iterations: pictures and sliders read what was simulated; times have entries."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import simtrain
from simtrain.base.resources import provenance
from simtrain.iteration.report.result import Result
from tests.helpers.command_line import call
from tests.helpers.packed_arrays import unpacked
from tests.render.html.pages import ParsedPage, parsed

pytestmark = pytest.mark.slow

FULL, PRESENT = "table4_full", "table4_selective_sequence"
OPTIONS = ("--set", "cluster=h100_sxm", "--set", "batch.global=16")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ParsedPage:
    """Write a report on two iterations, and parse it."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    outcome = call("compare", FULL, PRESENT, *OPTIONS, "-o", str(file))
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return parsed(file.read_text("utf-8"))


def data_in(page: ParsedPage, kind: str) -> list[Any]:
    """Return the data inside the figures or forms of a page."""
    scripts = [text for about, text in page.of("script") if about.get("type") and text != "{}"]
    records = map(json.loads, scripts)
    return [record for record in records if kind in record]


@pytest.fixture(scope="module")
def result() -> Result:
    return simtrain.run(simtrain.load_scenario(PRESENT, ["cluster=h100_sxm", "batch.global=16"]))


def test_the_page_names_its_profile(page: ParsedPage) -> None:
    digests = {text for _, text in page.of("code")}
    assert provenance("h100_sxm")["profile_sha256"] in digests


def test_every_entry_behind_a_time_has_a_source_on_the_page(
    page: ParsedPage, result: Result
) -> None:
    ids = {about.get("id") for _, about, _ in page.elements}
    links = {about["href"] for about, _ in page.of("a")}
    assert {str(link).removeprefix("#") for link in links} <= ids
    operators = result.operators()
    assert {f"entry-1-{name}" for name in operators.sources} <= ids
    text = " ".join(text for _, text in page.of("td"))
    assert all(source.source in text for source in operators.sources.values())


def test_bars_and_memory_equal_the_result(page: ParsedPage, result: Result) -> None:
    bars = result.bars
    _, timeline = data_in(page, "activities")
    columns = {name: unpacked(column) for name, column in timeline["columns"].items()}
    assert timeline["first"][-1] == len(bars)
    assert sorted(columns["end_s"]) == sorted(bars.end_s)
    for low, high in zip(timeline["first"], timeline["first"][1:], strict=False):
        assert (np.diff(columns["start_s"][low:high]) >= 0).all()
    counts = np.bincount(bars.activity, minlength=len(timeline["activities"]))
    assert (np.bincount(columns["activity"], minlength=len(counts)) == counts).all()
    memory, curve = timeline["memory"], result.memory_curve(0)
    assert memory["first"] == [0, len(curve.times_s)]
    assert tuple(unpacked(memory["columns"]["time_s"])) == curve.times_s
    assert tuple(unpacked(memory["columns"]["held_bytes"])) == curve.held_bytes
    assert memory["peaks_bytes"] == [stage.peak_bytes for stage in result.memory.stages]


def test_one_scenario_shows_what_to_buy_first_even_if_it_does_not_fit(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "report.html"
    small = ("--set", "hardware.gpu.memory_capacity=5 GiB")
    call("run", PRESENT, "-o", str(file), *small)
    page = parsed(file.read_text("utf-8"))
    assert any(text.endswith("5 GiB: does not fit") for _, text in page.of("strong"))
    captions = {text for _, text in page.of("caption")}
    assert "What to buy first, one resource at a time" in captions
    titles = [text for _, text in page.of("h2")]
    assert titles[:2] == ["Answer", "Where the time goes"] and "Comparison" not in titles


def test_a_page_has_the_headline_of_the_terminal_if_iterations_vary(
    tmp_path: pathlib.Path,
) -> None:
    file, words = tmp_path / "report.html", (PRESENT, "--set", "variation.slow.factor=1.3")
    assert call("run", *words, "-o", str(file)).exit_code == 0
    drawn = json.loads(call("run", *words, "--format=json").stdout)["variation"]
    page = parsed(file.read_text("utf-8"))
    (headline, *_) = (text for _, text in page.of("strong"))
    assert drawn["slowdown"] > 1.1
    assert headline == call("run", *words).stdout.splitlines()[0]
    assert headline.startswith(f"{1e3 * drawn['iteration_time_s']['mean']:.3g} ms an iteration (")


def test_different_models_are_compared_and_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "report.html"
    call("compare", PRESENT, "gpt2_1_5b", "-o", str(file))
    assert any(
        "train different models" in text for _, text in parsed(file.read_text("utf-8")).of("p")
    )
