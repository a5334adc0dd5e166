"""Terminal page of `simtrain plot`: the Pareto fronts and the files."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simtrain.base.strict_yaml import as_scalar
from simtrain.render.figures.sweep.draw import Plots
from simtrain.render.figures.sweep.pareto import Pareto
from simtrain.render.figures.sweep.results import Cell
from simtrain.render.pages.tables import table_of
from simtrain.units import four_digits, gib


def plots_page(plots: Plots) -> RenderableType:
    """List each panel's front, numbered as in its figure, and the files."""
    return Group(*_parts(plots))


def _parts(plots: Plots) -> Iterator[RenderableType]:
    if plots.pareto:
        for panel in plots.pareto.results.panels:
            yield _front_table(plots.pareto, panel)
            yield ""
    for name, why in plots.left_out.items():
        yield Text(f"No {name}: {why}.", style="dim")
    for file in plots.files:
        yield Text(str(file))


def _front_table(pareto: Pareto, panel: Cell) -> Table:
    title = "Pareto front of time and memory" + (f", {as_scalar(panel)}" if panel != "" else "")
    axes = pareto.results.varying()
    rows = [
        (
            str(number),
            gib(row["peak_bytes"]),
            four_digits(row["time"]),
            ", ".join(f"{name}: {as_scalar(row[name])}" for name in axes),
        )
        for number, row in enumerate(pareto.front(panel), start=1)
    ]
    return table_of(">", ">GiB", f">{pareto.unit}", "where", title=Text(title), rows=rows)
