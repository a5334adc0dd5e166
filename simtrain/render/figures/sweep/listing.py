"""The Pareto fronts of a sweep, and the files of its pictures: `simtrain plot`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from simtrain.base.strict_yaml import as_scalar
from simtrain.render.figures.sweep.draw import Plots
from simtrain.render.figures.sweep.pareto import Pareto
from simtrain.render.figures.sweep.quantities import shown
from simtrain.render.figures.sweep.results import Cell, Results
from simtrain.render.figures.sweep.scaling import ScalingCurves, efficiency
from simtrain.views.kinds import (
    BYTES,
    COUNT,
    FOUR_DIGITS,
    GIB,
    NUMBER,
    ROUNDED,
    SECONDS,
    SHARE,
    TEXT,
    Kind,
)
from simtrain.views.view import Column, Paragraphs, Part, Row, Table, View, remarks

MOST_POINTS = 200
"""Largest number of points that a page lists for a panel."""
_SETTING = Kind(as_scalar, is_number=False)


def plots_view(plots: Plots) -> View:
    """List each panel's front, numbered as in its figure, and the files."""
    return View([*_parts(plots)])


def _parts(plots: Plots) -> Iterator[Part]:
    if plots.pareto:
        for number, panel in enumerate(plots.pareto.results.panels):
            yield front_table(plots.pareto, panel, number)
    if plots.scaling:
        yield scaling_table(plots.scaling)
    yield remarks(f"No {name}: {why}." for name, why in plots.left_out.items())
    yield Paragraphs([*map(str, plots.files)], style=None)


def front_table(pareto: Pareto, panel: Cell, number: int) -> Table:
    """The front of a panel, numbered as in its figure; `number` is that of the panel."""
    title = "Pareto front of time and memory" + (f", {as_scalar(panel)}" if panel != "" else "")
    axes = pareto.results.varying()
    front = [*enumerate(pareto.front(panel), start=1)]
    columns = (
        Column("number", "", NUMBER),
        Column("peak_bytes", "GiB", GIB),
        Column("time", pareto.unit, FOUR_DIGITS),
        Column("", "where", TEXT),
    )
    rows = [
        Row(
            (
                place,
                row["peak_bytes"],
                row["time"],
                ", ".join(f"{name}: {as_scalar(row[name])}" for name in axes),
            )
        )
        for place, row in front
    ]
    data = [
        {"number": place, "peak_bytes": row["peak_bytes"], "time": row["time"]}
        | {name: row[name] for name in axes}
        for place, row in front
    ]
    name = f"front-{number + 1}" if len(pareto.results.panels) > 1 else "front"
    return Table(name, title, columns, rows, data=data)


def scaling_table(curves: ScalingCurves) -> Table:
    """The best tokens per second of each panel by number of GPUs."""
    columns = (
        Column("panel", "", TEXT),
        Column("num_gpus", "GPUs", COUNT),
        Column("tokens_per_s", "tokens per second", ROUNDED, "of the fastest point"),
        Column("efficiency", "of linear scaling", SHARE, "per GPU / that of the fewest GPUs"),
    )
    rows = [
        Row((as_scalar(panel), num_gpus, rate, efficiency(curve)[num_gpus]))
        for panel, curve in curves.curves.items()
        for num_gpus, rate in curve.items()
    ]
    return Table("scaling", "Best throughput by number of GPUs", columns, rows)


def points_table(
    results: Results, panel: Cell, column: str, extrapolated: Callable[[int], float | None]
) -> Table:
    """The best points of a panel that ran, the best first.

    Args:
        results: the sweep's results.
        panel: the panel.
        column: the column by which points are compared.
        extrapolated: returns the share of a point's kernel time for shapes outside the range that
            its profile was fitted on, by index; None if it is unknown.
    """
    names = results.table.column_names
    listed = ["index", *results.varying(), *names[names.index("rule") + 1 :]]
    points = results.ranked(panel, column).slice(0, MOST_POINTS).to_pylist()
    columns = [Column(name, _heading(name), _kind(name, name in results.axes)) for name in listed]
    columns.append(
        Column("", "extrapolated", SHARE, "kernel time for shapes outside the fitted range")
    )
    rows = [
        Row([*(point[name] for name in listed), extrapolated(point["index"])]) for point in points
    ]
    return Table("answer", f"Best points that ran, at most {MOST_POINTS}", columns, rows)


def _heading(column: str) -> str:
    name = column.removeprefix("breakdown_").replace("_", " ")
    return name.removesuffix(" s") if is_seconds(column) else name


def _kind(column: str, is_axis: bool) -> Kind:
    """Return how the values of a column of results read."""
    if is_axis:
        return _SETTING
    if column in ("index", "num_gpus"):
        return COUNT
    if column in ("peak_bytes", "capacity_bytes"):
        return BYTES
    return SECONDS if is_seconds(column) else Kind(functools.partial(shown, column))


def is_seconds(column: str) -> bool:
    """Return whether the values of a column of results are seconds."""
    return column.endswith("_s") and column != "tokens_per_s"
