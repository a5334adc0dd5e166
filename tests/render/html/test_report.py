"""Reports on iterations: pictures and sliders read what was simulated; times have entries."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

import simtrain
from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.result import Result
from simtrain.render.figures.iteration import COMPONENT_FILLS
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
        longest_s = np.append(columns["end_s"] - columns["start_s"], 0)[[*range(low, high), -1]]
        lane, longest_s = timeline["first"].index(high) - 1, longest_s.max()
        assert low == high or timeline["longest_s"][lane] == longest_s
    counts = np.bincount(bars.activity, minlength=len(timeline["activities"]))
    assert (np.bincount(columns["activity"], minlength=len(counts)) == counts).all()
    memory, curve = timeline["memory"], result.memory_curve(0)
    assert memory["first"] == [0, len(curve.times_s)]
    assert tuple(unpacked(memory["columns"]["time_s"])) == curve.times_s
    assert tuple(unpacked(memory["columns"]["held_bytes"])) == curve.held_bytes
    assert memory["peaks_bytes"] == [stage.peak_bytes for stage in result.memory.stages]


def test_each_part_of_a_comparison_is_below_the_names_of_its_iterations(page: ParsedPage) -> None:
    """What differs comes first. Entries of profiles have anchors of their own for each."""
    ids = [about["id"] for about, _ in page.of("section")]
    assert ids[:4] == ["answer", "comparison", "breakdown", "timeline"]
    assert [text for _, text in page.of("title")] == [f"{FULL} against {PRESENT}"]
    names = [text for _, text in page.of("h3") if text in (FULL, PRESENT)]
    assert names == [FULL, PRESENT] * (len(names) // 2) and len(names) == 2 * (len(ids) - 2)
    anchors = {f"#{about['id']}" for _, about, _ in page.elements if "id" in about}
    links = [about["href"] for about, _ in page.of("a")]
    assert anchors >= {*links} and {link[7:9] for link in links if "entry" in link} == {"0-", "1-"}
    commands = {*commands_of(page)}
    for name in (FULL, PRESENT):
        shown = f"simtrain run {name} --set cluster=h100_sxm --set batch.global=16"
        assert {shown, f"{shown} --show settings", f"{shown} --show ops"} <= commands


def test_the_bar_of_causes_and_the_bars_of_memory_are_in_scale(
    page: ParsedPage, result: Result
) -> None:
    styles = [str(about.get("style")) for about, _ in page.of("span", "i")]
    found = [re.search(r"(grow|width|left):([\d.e-]+)", style) for style in styles]
    shown = {kind: [float(each[2]) for each in found if each and each[1] == kind] for kind in
             ("grow", "width", "left")}  # fmt: skip
    causes_s = [getattr(result.breakdown, name) for name in CAUSE_LABELS]
    assert shown["grow"][-sum(map(bool, causes_s)) :] == [*filter(None, causes_s)]
    assert sum(causes_s) == pytest.approx(result.iteration_time_s)
    (stage,), capacity_bytes = result.memory.stages, result.memory.capacity_bytes
    parts_bytes = [stage.components_bytes[name] for name in COMPONENT_FILLS]
    widths = [*shown["width"][-6:], shown["left"][-1]]
    shares = np.array([*parts_bytes, capacity_bytes]) / max(capacity_bytes, stage.peak_bytes)
    assert widths == pytest.approx(100 * shares, abs=1e-4)


def commands_of(page: ParsedPage) -> list[str]:
    divs = [about for about, _ in page.of("div")]
    return [str(about["data-command"]) for about in divs if "data-command" in about]


def test_a_changed_copy_is_named_by_its_change(tmp_path: pathlib.Path) -> None:
    """Only the copy varies, and both are larger than their memory."""
    file = tmp_path / "report.html"
    changes = "--change", "variation.kernels=0.05", "--set", "batch.global=16", "--allow-oom"
    little = "--set", "hardware.gpu.memory_capacity=3 GiB"
    assert call("compare", PRESENT, *changes, *little, "-o", str(file)).exit_code == 0
    page = parsed(file.read_text("utf-8"))
    assert [text for _, text in page.of("title")] == [
        f"{PRESENT} against {PRESENT} variation.kernels=0.05"
    ]
    assert "variation" in [about["id"] for about, _ in page.of("section")]
    words = [text for _, text in page.of("p")]
    assert words.count("The scenario sets no field of variation.") == 1
    notes = [text for text in words if text.startswith("Not modelled: ")]
    assert ["Differences between GPUs" in text for text in notes] == [True, False]
    assert sum(command.endswith("--allow-oom") for command in commands_of(page)) >= 5


def test_a_page_from_python_names_the_command_that_compares_alike(tmp_path: pathlib.Path) -> None:
    """One scenario may have changes of its own; a command changes several alike."""
    changed = simtrain.load_scenario(PRESENT, ["cluster=h100_sxm"])
    plain = simtrain.load_scenario(PRESENT)
    for scenarios, title, arguments in (
        (changed, PRESENT, [f"{PRESENT} --set cluster=h100_sxm"]),
        (iter([plain] * 2), f"{PRESENT} against {PRESENT}", [f"{PRESENT} {PRESENT}"]),
        ([plain, changed], f"{PRESENT} against {PRESENT}", []),
    ):
        page = parsed(simtrain.report(scenarios, tmp_path / "x.html").read_text("utf-8"))
        assert [text for _, text in page.of("title")] == [title]
        compared = [each for each in commands_of(page) if each.startswith("simtrain compare")]
        assert compared == [f"simtrain compare {words} --allow-oom" for words in arguments]
