"""Reports on iterations: their data equal those of `--json`, and each time has its entries."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import simtrain
from simtrain.iteration.report.activities import Bars
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections.sources import entries_of_run
from simtrain.studies.sensitivity import FACTORS, resource_curves
from tests.helpers.command_line import call, refused
from tests.helpers.packed_arrays import unpacked
from tests.render.html.pages import ParsedPage, parsed

pytestmark = pytest.mark.slow

FULL, PRESENT = "table4_full", "table4_selective_sequence"
OPTIONS = ("--set", "cluster=h100_sxm", "--set", "batch.global=16")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ParsedPage:
    """Write a report on two iterations, and parse it."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    outcome = call("report", FULL, PRESENT, *OPTIONS, "-o", str(file))
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, f"{file}\n", "")
    return parsed(file.read_text("utf-8"))


def printed(*arguments: str) -> dict[str, Any]:
    """Return the JSON that a command prints, without what all commands add."""
    found: dict[str, Any] = json.loads(call(*arguments, *OPTIONS, "--json").stdout)
    del found["made_with"], found["schema_version"]
    return found


def test_the_data_equal_the_json_of_other_commands(page: ParsedPage) -> None:
    for run, name in zip(page.data["runs"], (FULL, PRESENT), strict=True):
        assert run["result"] == printed("run", name)
    assert page.data["comparison"] == printed("compare", FULL, PRESENT)
    (made_with,) = page.data["made_with"]
    assert made_with["simtrain"] == simtrain.__version__
    assert {made_with["profile_sha256"]} <= {text for _, text in page.of("code")}


def test_every_entry_behind_a_time_has_a_source_on_the_page(page: ParsedPage) -> None:
    ids = {about.get("id") for _, about, _ in page.elements}
    links = {about["href"] for about, _ in page.of("a")}
    assert {str(link).removeprefix("#") for link in links} <= ids
    for number, run in enumerate(page.data["runs"]):
        found = entries_of_run(Figures(page.data, ("runs", number)))
        entries = {one.value["entry"]: one.value for one in found}
        assert all(entry["source"] for entry in entries.values())
        for operator in run["operators"]["operators"]:
            assert operator["entries"].keys() <= entries.keys()
        assert {f"entry-{number}-{name}" for name in entries} <= ids


def test_sliders_read_points_that_the_engine_simulated(page: ParsedPage) -> None:
    result = simtrain.simulate(
        simtrain.load_scenario(PRESENT, ["cluster=h100_sxm", "batch.global=16"])
    )
    curves = [curve.to_dict() for curve in resource_curves(result)]
    assert page.data["runs"][1]["curves"] == curves
    positions = [
        (curve["resource"], str(len(FACTORS) - 1), f"/runs/1/curves/{number}/points")
        for number, curve in enumerate(curves)
    ]
    sliders = [about for about, _ in page.of("input")]
    shown = [(one["name"], one["max"], one["data-points"]) for one in sliders]
    assert shown[-len(curves) :] == positions


def test_without_sensitivity_a_report_has_no_sliders(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "report.html"
    call("report", PRESENT, "--no-sensitivity", "-o", str(file), *OPTIONS)
    page = parsed(file.read_text("utf-8"))
    assert page.data["runs"][0]["curves"] == []
    assert {about.get("type") for about, _ in page.of("input")} <= {None}


def test_bars_and_memory_equal_the_result(page: ParsedPage) -> None:
    run, result = (
        page.data["runs"][1],
        simtrain.simulate(simtrain.load_scenario(PRESENT, ["cluster=h100_sxm", "batch.global=16"])),
    )
    timeline, bars = run["timeline"], Bars.of(result)
    columns = {name: unpacked(one) for name, one in timeline["columns"].items()}
    assert timeline["first"][-1] == len(bars)
    assert sorted(columns["end_s"]) == sorted(bars.end_s)
    for low, high in zip(timeline["first"], timeline["first"][1:], strict=False):
        assert (np.diff(columns["start_s"][low:high]) >= 0).all()
    counts = np.bincount(bars.activity, minlength=len(timeline["activities"]))
    assert (np.bincount(columns["activity"], minlength=len(counts)) == counts).all()
    memory, curve = run["memory_over_time"], result.memory_curve(0)
    assert memory["first"] == [0, len(curve.times_s)]
    assert tuple(unpacked(memory["columns"]["time_s"])) == curve.times_s
    assert tuple(unpacked(memory["columns"]["held_bytes"])) == curve.held_bytes


def test_one_scenario_shows_what_to_buy_first_even_if_it_does_not_fit(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "report.html"
    small = ("--set", "hardware.gpu.memory_capacity=5 GiB")
    call("report", PRESENT, "-o", str(file), *small)
    page = parsed(file.read_text("utf-8"))
    compared = json.loads(call("compare", PRESENT, "--allow-oom", *small, "--json").stdout)
    assert page.data["comparison"].items() <= compared.items()
    assert "does not fit" in {text for _, text in page.of("strong")}
    assert "What to buy first" in {text for _, text in page.of("h3")}
    titles = [text for _, text in page.of("h2")]
    assert titles[:2] == ["Answer", "Where the time goes"] and "Comparison" not in titles


def test_different_models_are_compared_and_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "report.html"
    call("report", PRESENT, "gpt2_1_5b", "--no-sensitivity", "-o", str(file))
    assert any("different models" in text for _, text in parsed(file.read_text("utf-8")).of("p"))


def test_bad_options_are_refused(tmp_path: pathlib.Path) -> None:
    for arguments, code in (
        (f"{FULL} -o {tmp_path / 'report.txt'}", "E117"),
        (f"{FULL} -o {tmp_path / 'nowhere' / 'report.html'}", "E113"),
        (f"nowhere -o {tmp_path / 'report.html'}", "E101"),
    ):
        errors = refused("report", *arguments.split())
        assert f"{code} " in errors
    assert [*tmp_path.iterdir()] == []
