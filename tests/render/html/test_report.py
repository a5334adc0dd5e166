"""Reports on iterations: pictures and sliders read what was simulated; times have entries."""

import json
from typing import Any

import numpy as np
import pytest

import simtrain
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
