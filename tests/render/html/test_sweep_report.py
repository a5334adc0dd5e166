"""Reports on sweeps: best points, charts, sources of numbers, and refused options."""

import pathlib
import re

import pytest

from simtrain.render.figures.sweep import load_results
from simtrain.render.figures.sweep.listing import MOST_POINTS
from simtrain.render.figures.sweep.pareto import pareto
from simtrain.studies.simulation import simulate
from simtrain.studies.sweep.load import load_plan
from tests.helpers.command_line import call, refused
from tests.helpers.made_results import nothing, ran, row, write_results
from tests.render.html.pages import parsed
from tests.render.html.printed_tables import printed_csv, read_tables, wrong_numbers

pytestmark = pytest.mark.slow

EVIL = "<full>"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write results of a sweep over two axes: three of four points ran, the second
    is the fastest.
    """
    rates = {("none", 1): 300.0, ("none", 2): 400.0, (EVIL, 1): 100.0}
    rows = []
    for strategy in ("none", EVIL):
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
    (points,) = [table for table in read_tables(text).tables if table.name == "answer"]
    assert [value for value, _ in points.numbers["tokens_per_s"]] == [400.0, 300.0, 100.0]
    fronts = pareto(load_results(folder))
    (front,) = [table for table in read_tables(text).tables if table.name == "front"]
    assert fronts and [value for value, _ in front.numbers["peak_bytes"]] == [
        row["peak_bytes"] for row in fronts.front("")
    ]
    assert "3 ran, 1 do not fit in memory" in " ".join(words for _, words in page.of("p"))
    titles = [title for _, title in page.of("h2")]
    assert titles[0] == "Best point" and titles[-2:] == ["Best points", "Sources"]
    assert len(titles) == 6 and len(page.of("svg")) == 3
    ids = [about["id"] for _, about, _ in page.elements if "id" in about]
    assert len(ids) == len({*ids})
    assert {"400", "too big"} <= {words.strip() for _, words in page.of("text")}
    assert EVIL in {words.strip() for _, words in page.of("text")} and not page.of("img")


def test_pictures_follow_the_theme_and_have_their_own_ids(folder: pathlib.Path) -> None:
    file = folder.parent / "sweep.html"
    call("report", "--sweep", str(folder), "-o", str(file))
    drawings = re.findall(r"<svg .*?</svg>", file.read_text("utf-8"), re.DOTALL)
    for text in drawings:
        assert "#000000" not in text and "currentColor" in text
        ids = re.findall(r'\bid="([^"]*)"', text)
        references = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
        assert references and {*references} <= {*ids}


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


@pytest.mark.ci
def test_every_number_of_a_sweep_is_printed_by_its_command(
    swept: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(swept.parent)
    file = swept.parent / "small.html"
    assert call("report", "--sweep", "small", "-o", str(file)).exit_code == 0
    reader = read_tables(file.read_text("utf-8"))
    commands = {table.command.split()[1] for table in reader.tables if table.command}
    assert commands == {"plot", "query", "profile"} and len(reader.numbers) > 60
    assert wrong_numbers(reader, printed_csv) == []


def test_points_say_what_share_of_their_time_is_extrapolated(swept: pathlib.Path) -> None:
    file = swept.parent / "points.html"
    call("report", "--sweep", str(swept), "-o", str(file))
    (points,) = [
        table for table in read_tables(file.read_text("utf-8")).tables if table.name == "answer"
    ]
    plan = load_plan(swept.parent / "small.yaml")
    indices = [int(value) for value, _ in points.numbers["index"]]
    shares = [value for value, _ in points.numbers[""]]
    assert len(indices) == 4
    assert shares == [simulate(plan.scenario(index)).extrapolated_compute for index in indices]


def test_a_large_sweep_lists_its_best_points_only(tmp_path: pathlib.Path) -> None:
    rows = [
        row(place, {"batch.micro": place}, **ran(1.0 + place, 1))
        for place in range(MOST_POINTS + 5)
    ]
    file = tmp_path / "sweep.html"
    results = write_results(tmp_path / "results", rows, part_size=1000)
    assert call("report", "--sweep", str(results), "-o", str(file)).exit_code == 0
    (points,) = [
        table for table in read_tables(file.read_text("utf-8")).tables if table.name == "answer"
    ]
    indices = [value for value, _ in points.numbers["index"]]
    assert len(indices) == MOST_POINTS and indices[0] == MOST_POINTS + 4


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
