"""Figures of sweeps: best values, fronts of time and memory, scaling, and the written files."""

import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from simtrain.base.resources import list_sweeps
from simtrain.errors import InputError
from simtrain.render.figures.sweep import SweepPictures, SweepResults, best_by, front, scaling
from simtrain.studies.sweep.grid import load_sweep
from tests.helpers.command_line import call, refused
from tests.helpers.drawings import artists_of
from tests.helpers.made_results import nothing, ran, row, write_results
from tests.render.figures.test_labels import check

pytestmark = pytest.mark.slow


def pictures_of(folder: pathlib.Path, **chosen: str | None) -> SweepPictures:
    options = {"value": None, "x": None, "y": None} | chosen
    return SweepPictures.of(SweepResults.of(folder), **options)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_a_front_has_the_points_that_no_other_beats(points: list[tuple[int, int]]) -> None:
    rows = [row(n, {}, **ran(1000 / t, gib)) for n, (t, gib) in enumerate(points)]
    best = {(r["iteration_time_s"], r["peak_bytes"]) for r in front(rows)}
    for each in rows:
        time_s, num_bytes = each["iteration_time_s"], each["peak_bytes"]
        is_beaten = any(
            other["iteration_time_s"] <= time_s
            and other["peak_bytes"] <= num_bytes
            and (other["iteration_time_s"], other["peak_bytes"]) != (time_s, num_bytes)
            for other in rows
        )
        assert ((time_s, num_bytes) in best) == (not is_beaten)


def test_a_cell_has_its_best_point_or_a_reason() -> None:
    rows = [
        row(0, {"a": 1, "b": 1}, **ran(100, 10)),
        row(1, {"a": 1, "b": 2}, **ran(200, 20)),
        row(2, {"a": 2, "b": 1}, **nothing("illegal", "E301")),
        row(3, {"a": 2, "b": 2}, **nothing("does_not_fit")),
        row(4, {"a": 3, "b": 1}, **nothing("illegal", "E305")),
    ]
    most, least = best_by(rows, ["a"], "tokens_per_s"), best_by(rows, ["a"], "peak_bytes")
    assert [most[a,]["index"] for a in (1, 2, 3)] == [1, 3, 4]
    assert least[1,]["index"] == 0
    assert scaling(rows) == {8: 200}


@pytest.mark.ci
@pytest.mark.parametrize("name", list_sweeps())
def test_pictures_of_shipped_sweeps_can_be_read(name: str, tmp_path: pathlib.Path) -> None:
    """All texts are inside, and no two overlap."""
    sweep = load_sweep(name)
    rows = []
    for index in range(sweep.num_points):
        results = ran(14e3 + 37 * (index * 7 % 50), 60 + index * 5 % 17, 8 * 2 ** (index % 4))
        if index % 7 == 3:
            results = nothing(*(("does_not_fit",) if index % 3 else ("illegal", "E306")))
        rows.append(row(index, sweep.cells(index), **results))
    folder = write_results(tmp_path / name, rows, **{**sweep.header, "part_size": 1000})
    for figure in pictures_of(folder).figures().values():
        check(figure, name)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write results of a sweep over three axes; c changes most, and "way" has labels."""
    values = itertools.product((1, 2), (1, 2), ("slow", "fast"))
    rows = [
        row(n, {"b": b, "c": c, "way": w}, **ran(100.0 * c**3 + b, 9 + b, 8 * b))
        for n, (b, c, w) in enumerate(values)
    ]
    file = {"axes": {"way": {"slow": {"x": 1}, "fast": {"x": 2}}, "b": [1, 2], "c": [1, 2]}}
    return write_results(tmp_path / "out", rows, file=file, objective="mfu", overrides=[])


def test_the_axes_are_labels_and_what_changes_most(folder: pathlib.Path) -> None:
    pictures = pictures_of(folder)
    assert (pictures.value, pictures.x, pictures.y) == ("mfu", "c", "way")
    assert pictures_of(folder, x="b").y == "way" and pictures_of(folder, y="way").x == "c"


def test_pictures_and_their_data_stay(folder: pathlib.Path, snapshot: SnapshotAssertion) -> None:
    for figure in pictures_of(folder).figures().values():
        assert "\n".join(artists_of(figure)) == snapshot
    data = json.loads(call("sweep", str(folder), "--format=json").stdout)
    files = [pathlib.Path(file) for file in data.pop("pictures")]
    assert all(file.stat().st_size for file in files) and len(files) == 6
    assert (data["fronts"], data["scaling"]) == snapshot


def test_panels_and_cells_of_a_heat_map_by_hand(tmp_path: pathlib.Path) -> None:
    """Three models in two columns; a cell shows its best share, or why nothing ran."""
    rows = []
    for base, (x, y) in itertools.product("abc", itertools.product((None, 4), range(13))):
        results = ran(100.0, 2 if x else 4 + y) if y < 11 else nothing("does_not_fit")
        results = nothing("illegal", "E301") if y == 12 else results
        rows += [row(len(rows), {"base": base, "x": x, "y": y}, **results)]
        rows += [row(len(rows), {"base": base, "x": x, "y": y}, **nothing("illegal", "E305"))]
    folder = write_results(tmp_path / "out", rows, objective="tokens_per_s")
    pictures = pictures_of(folder, value="peak_bytes", x="x", y="y")
    figure = pictures.figures()["heat_map"]
    assert pictures.figures().keys() == {"heat_map", "pareto"}  # all have as many GPUs
    assert figure.get_size_inches().tolist() == pytest.approx([9, 2 * (0.3 * 13 + 1.2) + 0.2])
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
    assert figure.get_suptitle().endswith("best peak_bytes, lower is better")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["null", "4"]
    shares = axes.images[0].get_array().filled(-1)
    expected = [[2 / (4 + y), 1] if y < 11 else [-1, -1] for y in range(13)]
    assert axes.images[0].get_clim()[1] == 1
    assert shares.astype(float).ravel() == pytest.approx(np.ravel(expected))
    words = [(text.get_text(), text.get_weight()) for text in axes.texts]
    no = [("too big", "normal"), ("E301", "normal")]
    one = [(str(4 + y), "normal") for y in range(11)]
    assert words == [*one, *no, *[("2", "bold")] * 11, *no]
    assert [text.get_position() for text in axes.texts[:2]] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(("length", "is_turned"), [(5, False), (20, False), (21, True)])
def test_axes_that_vary_have_a_heat_map_with_long_labels_up_or_turned(
    length: int, is_turned: bool, tmp_path: pathlib.Path
) -> None:
    def results(name: str, **axes: list[Any]) -> pathlib.Path:
        points = [
            dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())
        ]
        rows = [row(n, each, **ran(100.0 + n % 2 + 9 * n, 9)) for n, each in enumerate(points)]
        return write_results(tmp_path / name, rows)

    labels = ["a" * length, "b" * length]
    pictures = pictures_of(results("one", way=labels, same=[1]))
    assert (pictures.x, pictures.y, [*pictures.figures()]) == ("", "", ["pareto"])
    for name, axes in (
        ("two", {"way": labels, "n": [1, 2]}),
        ("more", {"n": [1, 2], "way": labels}),
    ):
        pictures = pictures_of(results(name, **axes))
        assert (pictures.x, pictures.y) == ("n", "way")
    turned = pictures_of(results("turned", way=labels, n=[2, 1]), x="way")
    axes = turned.figures()["heat_map"].axes[0]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {90.0 * is_turned}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]
    assert [label.get_text() for label in axes.get_xticklabels()] == labels


@pytest.mark.parametrize("option", ["--axes", "--value"])
def test_unknown_columns_are_refused(folder: pathlib.Path, option: str) -> None:
    errors = refused("sweep", str(folder), option, "wya")
    assert errors.startswith(f"{option}: E864") and "Write one of" in errors


def test_folders_without_points_are_refused(tmp_path: pathlib.Path) -> None:
    assert "E820" in refused("sweep", str(tmp_path))
    rows: list[dict[str, Any]] = [row(0, {"a": 1}, **nothing("illegal", "E301"))]
    with pytest.raises(InputError, match="E863"):
        SweepResults.of(write_results(tmp_path, rows))


def test_a_page_draws_all_pictures_and_lists_the_front(folder: pathlib.Path) -> None:
    file = folder.parent / "sweep.html"
    outcome = call("sweep", str(folder), "-o", str(file))
    assert (outcome.exit_code, outcome.stdout) == (0, f"{file}\n")
    text = file.read_text("utf-8")
    assert text.count("<img") == 3 and "8 of 8 points ran" in text
    (file.parent / "here").mkdir()
    assert "E820" in refused("sweep", str(file.parent / "here"), "-o", str(file))
