"""The sweeps that come with simtrain, and the page about them."""

import functools
import pathlib
import re
import shlex
from collections import Counter

import pytest
from pytest import MonkeyPatch

from docs.update.update import stale
from docs.update.what_if_figures import larger_batch
from docs.update.what_if_tables import winners
from docs.update.what_ifs import rows_of
from simtrain.base.resources import list_sweeps
from simtrain.render.figures import style
from simtrain.scenario import RULES, Scenario
from simtrain.studies.sweep.grid import Sweep, load_sweep
from tests.helpers.command_line import ROOT, call
from tests.helpers.made_results import ran, row, write_results

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/what_ifs.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^simtrain (sweep|plot) (.*)$", PAGE, re.MULTILINE)
NAMES = [shlex.split(words)[0] for name, words in COMMANDS if name == "sweep"]


@functools.cache
def plan_of(name: str) -> Sweep:
    return load_sweep(name)


@functools.cache
def scenarios_of(name: str) -> tuple[Scenario, ...]:
    """Return the scenarios of a sweep's points that meet its constraints."""
    plan = plan_of(name)
    points = {index: plan.scenario(index) for index in range(plan.num_points)}
    return tuple(plan.kept(points).values())


def is_legal(scenario: Scenario) -> bool:
    return not any(rule.check(scenario) for rule in RULES)


def test_the_page_has_a_section_for_each_sweep() -> None:
    assert set(NAMES) <= set(list_sweeps())
    assert len(NAMES) == len(set(NAMES)) == PAGE.count("\n## ")


@pytest.mark.parametrize("name", NAMES)
def test_most_points_of_a_shipped_sweep_are_legal(name: str) -> None:
    """Most points are legal, and the sweep takes a second or two."""
    scenarios = scenarios_of(name)
    legal = Counter(is_legal(scenario) for scenario in scenarios)
    assert plan_of(name).file["description"]
    assert 15 <= len(scenarios) <= 250
    assert legal[True] >= 0.8 * len(scenarios)


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_plots_are_drawn_with_the_commands_of_the_page(
    name: str, tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    """Made-up results are plotted; tests/render/figures examines the files."""
    drawn: list[str] = []
    monkeypatch.setattr(style, "save", lambda figure, files: drawn.append(files[0].stem))
    monkeypatch.chdir(tmp_path)
    plan = plan_of(name)
    (sweep,) = (
        words
        for command, words in COMMANDS
        if command == "sweep" and "--out" in words and name in words
    )
    assert shlex.split(sweep) == [name, "--out", name]
    rows = [
        row(index, plan.cells(index), **ran(100 + index, 10 + index % 7, 8 + index))
        for index in range(plan.num_points)
    ]
    write_results(pathlib.Path(name), rows, part_size=50)
    plots = [
        words
        for command, words in COMMANDS
        if command == "sweep" and "--out" not in words and name in words.split()
    ]
    assert plots
    for words in plots:
        done = call("sweep", *shlex.split(words))
        assert (done.exit_code, done.stderr) == (0, "")
    assert drawn == ["heat_map", "pareto", "scaling"] * len(plots)


# ------------------------------------------------------------------------- the page's figures


def section_of(name: str) -> str:
    (found,) = (text for text in PAGE.split("\n## ") if f"simtrain sweep {name} " in text)
    return found


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_current_results_of_its_sweep(name: str) -> None:
    """All digits of the table and of the text below it are compared."""
    assert [*stale(["docs/what_ifs.md"], {name})] == []


@pytest.mark.parametrize("sweep", ["pipeline_bubble", "fp8", "expert_parallel"])
def test_the_picture_has_the_figures_of_the_table(sweep: str) -> None:
    (name,) = re.findall(r"\((\w+\.svg)\)", section_of(sweep))
    picture = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert len(picture) < 80_000
    for one in rows_of(sweep):
        assert one["status"] != "ok" or f"<!-- {one['mfu']:.1%} -->" in picture


def test_selective_recompute_frees_more_than_half_for_less_than_half() -> None:
    figures = dict(larger_batch(functools.partial(rows_of, "larger_batch")))
    least = [int(figures[f"selective_{name}"].partition(" ")[0]) for name in ("frees", "computes")]
    assert least[0] > 50
    assert int(figures["selective_computes"].split()[2]) < 50


def test_the_picture_of_context_parallelism_has_the_best_of_each() -> None:
    picture = (ROOT / "docs/context_parallel.svg").read_text(encoding="utf-8")
    assert len(picture) < 80_000
    best = winners(rows_of("context_parallel"), "mfu", "parallelism.context", "recompute")
    assert all(f"<!-- {one['mfu']:.1%} -->" in picture for one in best)


def test_the_picture_of_grouped_queries_has_the_figures_of_the_table() -> None:
    picture = (ROOT / "docs/grouped_queries.svg").read_text(encoding="utf-8")
    for one in rows_of("grouped_queries"):
        if one["sequences"] == "64 of 8,192" and one["recompute"] == "none":
            assert f"<!-- {one['tokens_per_s'] / 1e3:.1f}k -->" in picture
