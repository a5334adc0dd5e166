"""Errors of a table of times, one bar per row, with the threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.paper.entries import PaperEntry, TimeComparison
from simtrain.render.figures.style import (
    BLACK,
    BLUE,
    VERMILLION,
    annotate,
    draw_grid_lines,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_errors(comparison: TimeComparison) -> Figure:
    """Draw one bar per row: its error in percent, with both times on the left."""
    rows = comparison.rows[::-1]
    figure, axes = new_axes(7.5, 1.5 + 0.3 * len(rows))
    errors = [100 * error for error in comparison.errors[::-1]]
    axes.barh(range(len(rows)), errors, 0.6, color=BLUE, edgecolor=BLACK, linewidth=0.5)
    limit = 100 * comparison.max_threshold
    for side in (-limit, limit):
        axes.axvline(side, color=VERMILLION, linestyle="--", linewidth=1)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    for place, error in enumerate(errors):
        text = f"{error:+.2f} %".replace("-", "−")
        right = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
        annotate(axes, text, (1, place), (32, 0), **right)
    widest = 1.25 * max(limit, *map(abs, errors))
    axes.set(xlim=(-widest, widest), ylim=(-0.7, len(rows) - 0.3), title=comparison.title)
    axes.set_xlabel(f"error of the simulated time, % of the published time (dashed: ±{limit:g} %)")
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.tick_params(axis="y", length=0)
    draw_grid_lines(axes, "x")
    return figure


def _name(row: PaperEntry) -> str:
    which = f" {row.facts['pass']}" if "pass" in row.facts else ""
    times = f"{_seconds(row.simulated)} (paper {_seconds(row.paper or 0)})"
    return f"{' '.join(row.labels)}{which}\n{times}"


def _seconds(time_s: float) -> str:
    return f"{1e3 * time_s:.2f} ms" if time_s < 0.1 else f"{time_s:.2f} s"
