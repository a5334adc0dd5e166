"""The Pareto fronts of a sweep, and the files of its pictures: `simtrain plot`."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.base.strict_yaml import as_scalar
from simtrain.render.figures.sweep.draw import Plots
from simtrain.render.figures.sweep.pareto import Pareto
from simtrain.render.figures.sweep.results import Cell
from simtrain.views.kinds import FOUR_DIGITS, GIB, NUMBER, TEXT
from simtrain.views.view import Column, Part, Row, Sentences, Table, View, remarks


def plots_view(plots: Plots) -> View:
    """List each panel's front, numbered as in its figure, and the files."""
    return View([*_parts(plots)])


def _parts(plots: Plots) -> Iterator[Part]:
    if plots.pareto:
        for number, panel in enumerate(plots.pareto.results.panels):
            yield _front(plots.pareto, panel, number)
    yield remarks(f"No {name}: {why}." for name, why in plots.left_out.items())
    yield Sentences([*map(str, plots.files)], style=None)


def _front(pareto: Pareto, panel: Cell, number: int) -> Table:
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
