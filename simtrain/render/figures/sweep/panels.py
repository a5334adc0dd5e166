"""Figures with several panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simtrain.render.figures import style
from simtrain.render.figures.sweep.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 2
"""Largest number of panels side by side."""


def panels_of(results: Results, height_in: float, notes: str = "") -> tuple[Figure, Sequence[Axes]]:
    """Create a figure with one axes per panel, at most two side by side.

    Args:
        results: the sweep's results.
        height_in: height of a panel in inches.
        notes: lines of small text below the panels.
    """
    count = len(results.panels)
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = style.new_figure(7.5, 0.5 + rows * max(height_in, 2.0), notes)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[count:]:
        unused.remove()
    return figure, list(axes[:count])
