"""Figures of reproduced tables and figures: files, readable text, identical bytes."""

import pathlib
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from pytest import MonkeyPatch
from syrupy.assertion import SnapshotAssertion

from simtrain.guests.paper import figures as figures_of_paper
from simtrain.guests.paper import targets
from simtrain.guests.paper.entries import PaperEntry, Reproduction, TimeComparison
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


def test_a_figure_is_written_as_two_files(
    results: dict[str, targets.TargetResult], tmp_path: pathlib.Path
) -> None:
    written = figures_of_paper.write_paper_figure("fig7", results["fig7"], tmp_path)
    assert written == (tmp_path / "fig7.png", tmp_path / "fig7.svg")
    assert all(file.stat().st_size > 1000 for file in written)


@pytest.mark.parametrize("target", TARGETS)
def test_figures_keep_their_words_and_values(
    target: str, figures: dict[str, Figure], snapshot: SnapshotAssertion
) -> None:
    words, values = list[str](), list[str]()
    for axes in figures[target].axes:
        words += [text.get_text() for text in axes.findobj(Text) if text.get_text()]
        values += [f"{bar.get_y() + bar.get_height():.4g}" for bar in axes.patches]
        values += [f"{y:.4g}" for line in axes.lines for y in [*line.get_ydata()]]
    assert [" | ".join(words), " ".join(values)] == snapshot


def test_bars_and_diamonds_of_figure_8_stand_where_ours_and_the_papers_times_are(
    results: dict[str, targets.TargetResult], figures: dict[str, Figure]
) -> None:
    """Overheads of the paper are relative to our baseline of the same model."""
    result = results["fig8"]
    assert isinstance(result, Reproduction)
    times, overheads = result.section("times"), result.section("overheads")
    parts = times.names("part")
    total_ms = {
        labels: 1e3 * sum(times.value(*labels, part) for part in parts)
        for labels in {entry.labels[:2] for entry in times.entries}
    }
    papers = [
        total_ms[entry.labels[0], times.names("strategy")[0]] * (1 + entry.paper)
        for entry in overheads.entries
        if entry.paper is not None
    ]
    (axes,) = figures["fig8"].axes
    diamonds = [line.get_ydata()[0] for line in axes.lines if len(line.get_ydata()) == 1]
    assert sorted(diamonds) == pytest.approx(sorted(papers))
    tops = {round(bar.get_y() + bar.get_height(), 6) for bar in axes.patches}
    assert {round(total, 6) for total in total_ms.values()} <= tops


# ------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("target", TARGETS)
def test_no_two_texts_overlap(target: str, figures: dict[str, Figure]) -> None:
    check(figures[target])


def test_bars_of_errors_have_no_overlapping_text() -> None:
    """Two of the errors are at the threshold."""
    rows = [PaperEntry(("22B", "full"), 1.42 * (1 + error), 1.42) for error in (-0.02, 0.0195, 0.0)]
    with styled():
        check(draw("dp530b", TimeComparison("made", rows, 0.01, 0.02)))
