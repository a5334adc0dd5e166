"""The report on a sweep: its best points, pictures and numbers, and what it refuses."""

import pathlib

import pytest

from simtrain.figures.sweep import load_results
from simtrain.figures.sweep.pareto import pareto
from simtrain.html.sweep_report import MOST_POINTS
from tests.helpers.command_line import call
from tests.helpers.made_results import nothing, ran, row, write_results
from tests.html.pages import parsed, value_at

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two axes; each point but one runs, and the second is the fastest."""
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
    assert fronts and page.data["fronts"] == fronts.to_json()
    assert page.data["num_points"] == {"ok": 3, "does_not_fit": 1}
    numbers = page.of("data")
    assert len(numbers) > 10
    for about, _ in numbers:
        assert float(about["value"] or "") == value_at(page.data, about["data-at"] or "")
    titles = [title for _, title in page.of("h2")]
    assert titles[0] == "Best point" and titles[-1] == "Best points" and len(titles) == 5
    assert len(page.of("svg")) == 3
    ids = [about["id"] for _, about, _ in page.elements if "id" in about]
    assert len(ids) == len({*ids})
    assert "creativecommons" not in text and "<!DOCTYPE svg" not in text


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
    outcome = call("report", "-o", str(tmp_path / "x.html"), *arguments.split())
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert words in " ".join(outcome.stderr.replace("│", " ").split())
