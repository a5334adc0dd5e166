"""Reports on sweeps: best points, charts, sources of numbers, and refused options."""

import functools
import json
import pathlib
import shlex
from typing import Any

import pytest

from simtrain.render.figures.sweep import load_results
from simtrain.render.figures.sweep.pareto import pareto
from simtrain.render.html.sweep_report import MOST_POINTS
from simtrain.studies.simulation import simulate
from simtrain.studies.sweep import load_plan
from tests.helpers.command_line import call, refused
from tests.helpers.made_results import nothing, ran, row, write_results
from tests.render.html.numbers import data_of, read, source_of, value_at, wrong_numbers
from tests.render.html.pages import parsed

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write results of a sweep over two axes: three of four points ran, the second
    is the fastest.
    """
    rates = {("none", 1): 300.0, ("none", 2): 400.0, ("<full>", 1): 100.0}
    rows = []
    for strategy in ("none", "<full>"):
        for micro in (1, 2):
            rate = rates.get((strategy, micro))
            results = ran(rate, 10 * micro, num_gpus=8 * micro) if rate else nothing("does_not_fit")
            rows.append(row(len(rows), {"recompute": strategy, "batch.micro": micro}, **results))
    return write_results(tmp_path / "results", rows)


def test_the_best_points_come_first_with_the_sweeps_numbers(folder: pathlib.Path) -> None:
    file = folder.parent / "sweep.html"
    outcome = call("report", "--sweep", str(folder), "-o", str(file))
    assert (outcome.exit_code, outcome.stdout) == (0, f"{file}\n")
    text = file.read_text("utf-8")
    page = parsed(text)
    (panel,) = page.data["panels"]
    assert [point["tokens_per_s"] for point in panel["points"]] == [400.0, 300.0, 100.0]
    results = load_results(folder)
    fronts = pareto(results)
    assert fronts and page.data["fronts"] == fronts.fronts
    assert page.data["num_points"] == {"ok": 3, "does_not_fit": 1}
    assert wrong_numbers(read(text), page.data) == []
    titles = [title for _, title in page.of("h2")]
    assert titles[0] == "Best point" and titles[-2:] == ["Best points", "Sources"]
    assert len(titles) == 6 and len(page.of("svg")) == 2
    ids = [about["id"] for _, about, _ in page.elements if "id" in about]
    assert len(ids) == len({*ids})
    assert [text for about, text in page.of("td") if about.get("class") == "best"] == ["400"]
    assert [text for about, text in page.of("td") if about.get("class") == "empty"] == ["too big"]


SWEEP = """
name: small
base: {model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, seq_length: 1024},
       batch: {micro: 1, global: 16}, cluster: h100_sxm}
axes:
  batch.micro: {powers_of_two: [1, 2]}
  split: {one: {parallelism.tensor: 1}, two: {parallelism.tensor: 2, precision.compute: fp8}}
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Run a small sweep, and return the folder of its results."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.yaml").write_text(SWEEP, "utf-8")
    assert call("sweep", str(folder / "small.yaml"), "--out", str(folder / "small")).exit_code == 0
    return folder / "small"


def test_every_number_of_a_sweep_equals_that_of_the_command_of_its_source(
    swept: pathlib.Path,
) -> None:
    file = swept.parent / "small.html"
    assert call("report", "--sweep", str(swept), "-o", str(file)).exit_code == 0
    text = file.read_text("utf-8")
    reader, data = read(text), data_of(text)
    assert wrong_numbers(reader, data) == [] and len(reader.shown) > 200
    followed = 0
    for pointer in sorted({place for one in reader.shown for place in one.pointers}):
        source, place = source_of(pointer, data)
        if not source["command"]:
            continue
        words = source["command"].replace("FIGURE", pointer.split("/")[2])
        if "INDEX" in words:
            index = value_at(data, pointer.rpartition("/")[0])["index"]
            words = words.replace("INDEX", str(index))
        assert value_at(data, pointer) == value_at(printed(words, swept), place), pointer
        followed += 1
    assert followed > 100


@functools.cache
def printed(command: str, folder: pathlib.Path) -> Any:
    """Return the JSON that a command prints."""
    outcome = call(*shlex.split(command.replace("FOLDER", str(folder))), "--json")
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_data_of_points_equal_their_simulation(swept: pathlib.Path) -> None:
    file = swept.parent / "points.html"
    call("report", "--sweep", str(swept), "-o", str(file))
    data = data_of(file.read_text("utf-8"))
    plan = load_plan(swept.parent / "small.yaml")
    assert len(data["points"]) == 4
    for index, point in data["points"].items():
        scenario = plan.scenario(int(index))
        result = simulate(scenario)
        assert point["extrapolated_compute"] == result.extrapolated_compute
        assert point["profile"] == "h100_sxm" and point["base"] == plan.base
        assert point["settings"]["batch.micro"] == scenario.batch.micro
    assert data["profiles"]["h100_sxm"]["entries"]["gpu.peak_flops"]["source"]
    index = data["scaling_points"][""]["2"]["index"]
    assert data["points"][str(index)]["settings"]["parallelism.tensor"] == 2


def test_a_large_sweep_lists_its_best_points_only(tmp_path: pathlib.Path) -> None:
    rows = [row(one, {"batch.micro": one}, **ran(1.0 + one, 1)) for one in range(MOST_POINTS + 5)]
    file = tmp_path / "sweep.html"
    results = write_results(tmp_path / "results", rows, part_size=1000)
    assert call("report", "--sweep", str(results), "-o", str(file)).exit_code == 0
    (panel,) = parsed(file.read_text("utf-8")).data["panels"]
    assert len(panel["points"]) == MOST_POINTS and panel["points"][0]["index"] == MOST_POINTS + 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "name a scenario, or add --sweep"),
        ("gpt2_1_5b --sweep here", "has no effect with --sweep"),
        ("--sweep here --set batch.micro=1", "has no effect with --sweep"),
        ("--sweep here --no-sensitivity", "has no effect with --sweep"),
        ("--sweep here", "E861"),
    ],
)
def test_bad_options_are_refused(tmp_path: pathlib.Path, arguments: str, words: str) -> None:
    errors = refused("report", "-o", str(tmp_path / "x.html"), *arguments.split())
    assert words in " ".join(errors.replace("│", " ").split())
