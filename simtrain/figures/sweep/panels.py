"""A picture with several panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simtrain.figures import style
from simtrain.figures.sweep.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 2


def panels_of(results: Results, height_in: float) -> tuple[Figure, Sequence[Axes]]:
    """An empty picture with axes for each panel, two beside each other, each `height_in` high."""
    count = len(results.panels)
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = style.new_figure(7.5, 0.5 + rows * max(height_in, 2.0))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[count:]:
        unused.remove()
    return figure, list(axes[:count])
