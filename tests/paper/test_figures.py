"""Figures of reproduced tables and figures: files, readable text, identical bytes."""

import pathlib
from collections.abc import Iterator

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pytest import MonkeyPatch

from simtrain.paper import figures as figures_of_paper
from simtrain.paper import targets
from simtrain.paper.entries import PaperEntry, TimeComparison
from simtrain.paper.figures import draw, write_paper_figure
from simtrain.paper.memory import AppendixC
from simtrain.paper.memory import _example as example
from simtrain.paper.memory import _passes as passes
from simtrain.render.figures.style import styled
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import call
from tests.render.figures.test_labels import check

pytestmark = pytest.mark.slow

TARGETS = ("table2", "table4", "fig1", "fig7", "fig8", "fig9", "appendix-c", "zero")


@pytest.fixture(scope="module")
def results() -> dict[str, targets.TargetResult]:
    """Reproduce every target; of Appendix C only the example that the figure shows."""
    short = [target for target in TARGETS if target != "appendix-c"]
    window = AppendixC("Appendix C", (), tuple(passes(simulate(example()))))
    return {target: targets.reproduce(target) for target in short} | {"appendix-c": window}


@pytest.fixture(scope="module")
def figures(results: dict[str, targets.TargetResult]) -> Iterator[dict[str, Figure]]:
    with styled():
        yield {target: draw(target, result) for target, result in results.items()}


@pytest.mark.ci
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, marks=[] if target in ("table4", "fig7") else pytest.mark.ci)
        for target in TARGETS
    ],
)
def test_equal_figures_are_identical_png_and_svg_files(
    target: str, results: dict[str, targets.TargetResult], tmp_path: pathlib.Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        written = write_paper_figure(target, results[target], folder)
        assert written == (folder / f"{target}.png", folder / f"{target}.svg")
    for kind in ("png", "svg"):
        one, two = ((folder / f"{target}.{kind}").read_bytes() for folder in folders)
        assert one == two


def axes_of(figure: Figure) -> list[Axes]:
    return list(figure.axes)


@pytest.mark.parametrize("target", TARGETS)
def test_figures_have_titles_units_and_legends(target: str, figures: dict[str, Figure]) -> None:
    figure = figures[target]
    titles = [axes.get_title(loc="left") for axes in axes_of(figure)]
    assert all(titles)
    labels = " ".join(axes.get_xlabel() + " " + axes.get_ylabel() for axes in axes_of(figure))
    unit = {"fig1": "GiB", "fig9": "GiB", "table2": "MiB", "zero": "GB"}.get(target)
    unit = unit or ("ms" if target in ("fig8", "appendix-c") else "%")
    assert unit in labels.replace(",", " ").split()
    assert figure.legends or target == "table4"
    for legend in figure.legends:
        names = [text.get_text() for text in legend.get_texts()]
        assert len(names) == len(set(names)) >= 2


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_bars_show_the_values_of_the_table(
    figures: dict[str, Figure], results: dict[str, targets.TargetResult]
) -> None:
    shares = results["fig7"].sections[0]  # type: ignore[union-attr]
    written = texts(figures["fig7"].axes[0])
    assert written == [f"{100 * entry.simulated:.1f}" for entry in shares.entries]
    heights = [patch.get_height() for patch in figures["fig7"].axes[0].patches]  # type: ignore[attr-defined]
    drawn = [height for height in heights if height]
    assert drawn == [100 * entry.simulated for entry in shares.entries]


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


def test_both_panels_of_figure_9_have_the_same_scale(figures: dict[str, Figure]) -> None:
    left, right = figures["fig9"].axes
    assert left.get_ylim() == right.get_ylim()


def test_the_last_bar_of_appendix_c_is_inside_the_frame(figures: dict[str, Figure]) -> None:
    (axes,) = figures["appendix-c"].axes
    ends = [patch.get_x() + patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    assert max(ends) < axes.get_xlim()[1]
