"""Figures of reproduced tables and figures: files, readable text, identical bytes."""

import pathlib
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from pytest import MonkeyPatch

from simtrain.guests.paper import figures as figures_of_paper
from simtrain.guests.paper import targets
from simtrain.guests.paper.entries import PaperEntry, TimeComparison
from simtrain.guests.paper.figures import draw
from simtrain.render.figures.style import styled
from tests.helpers.command_line import call
from tests.render.figures.test_labels import check

pytestmark = pytest.mark.slow

TARGETS = ("table4", "fig1", "fig7", "fig8", "fig9")


@pytest.fixture(scope="module")
def results() -> dict[str, targets.TargetResult]:
    return {target: targets.reproduce(target) for target in TARGETS}


@pytest.fixture(scope="module")
def figures(results: dict[str, targets.TargetResult]) -> Iterator[dict[str, Figure]]:
    with styled():
        yield {target: draw(target, result) for target, result in results.items()}


# ------------------------------------------------------------------------------- the command line


def test_out_creates_the_folder_and_writes_all_figures(
    tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    drawn: dict[str, pathlib.Path] = {}
    quick = TimeComparison("a quick one", [PaperEntry(("22B", "full"), 1.42, 1.42)], 0.01, 0.01)
    monkeypatch.setattr(targets, "reproduce", lambda target, progress: quick)
    monkeypatch.setattr(
        figures_of_paper, "write_paper_figure", lambda name, result, out: drawn.update({name: out})
    )
    folder = tmp_path / "new" / "pictures"
    outcome = call("reproduce", "all", "-o", str(folder))
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert folder.is_dir()
    assert drawn == dict.fromkeys([*TARGETS, "table5", "dp530b"], folder)


# ------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("target", TARGETS)
def test_no_two_texts_overlap(target: str, figures: dict[str, Figure]) -> None:
    check(figures[target])


def test_bars_of_errors_have_no_overlapping_text() -> None:
    """Two of the errors are at the threshold."""
    rows = [PaperEntry(("22B", "full"), 1.42 * (1 + error), 1.42) for error in (-0.02, 0.0195, 0.0)]
    with styled():
        check(draw("dp530b", TimeComparison("made", rows, 0.01, 0.02)))
