"""Tables of times: how far off each is, against the thresholds."""

from __future__ import annotations

from matplotlib.figure import Figure

from simtrain.paper.comparison import Comparison, Row
from simtrain.pictures.style import BLACK, BLUE, GREY, SMALL, VERMILLION, new_figure


def draw_errors(comparison: Comparison) -> Figure:
    """A bar a row: its error in percent, and both times beside it."""
    rows = comparison.rows[::-1]
    figure = new_figure(7.5, 1.5 + 0.3 * len(rows))
    axes = figure.subplots()
    errors = [100 * row.error for row in rows]
    axes.barh(range(len(rows)), errors, 0.6, color=BLUE, edgecolor=BLACK, linewidth=0.5)
    limit = 100 * comparison.max_threshold
    for side in (-limit, limit):
        axes.axvline(side, color=VERMILLION, linestyle="--", linewidth=1)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    for place, error in enumerate(errors):
        left = error < 0
        axes.annotate(
            f"{error:+.2f} %".replace("-", "−"),
            (error, place),
            (-4 if left else 4, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize=SMALL,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )
    widest = 1.25 * max(limit, *map(abs, errors))
    axes.set_xlim(-widest, widest)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GREY, linewidth=0.5, alpha=0.6)
    axes.set_xlabel(f"simulated against published time, % (dashed: ±{limit:g} %)")
    axes.set_title(comparison.title, loc="left")
    return figure


def _name(row: Row) -> str:
    which = f" {row.facts['pass']}" if "pass" in row.facts else ""
    times = f"{_seconds(row.simulated_s)} (paper {_seconds(row.paper_s)})"
    return f"{row.model} {row.strategy}{which}\n{times}"


def _seconds(time_s: float) -> str:
    return f"{1e3 * time_s:.2f} ms" if time_s < 0.1 else f"{time_s:.2f} s"
