"""Timeline of Appendix C's example: which microbatches save everything (the paper's Figure 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.paper.kept_microbatches import AppendixC
from simtrain.render.figures.style import (
    BLACK,
    GREEN,
    ORANGE,
    SKY,
    SMALL,
    YELLOW,
    legend_of,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FILLS = {
    ("F", False): (SKY, "", "forward, saves its input only"),
    ("F", True): (GREEN, "//", "forward, saves everything"),
    ("B", False): (ORANGE, "", "recompute and backward"),
    ("B", True): (YELLOW, "//", "backward without recompute"),
}


def draw_window(appendix: AppendixC) -> Figure:
    """Draw the example's timeline, one row per stage; microbatches are numbered from 1."""
    from matplotlib.artist import Artist
    from matplotlib.patches import Patch

    figure, axes = new_axes(7.5, 2.9)
    stages = sorted({one.stage for one in appendix.example})
    for one in appendix.example:
        colour, hatch, _ = _FILLS[one.action.kind, one.saves_all]
        start_ms, duration_ms = 1e3 * one.start_s, 1e3 * (one.end_s - one.start_s)
        bar = axes.barh(one.stage, duration_ms, 0.9, start_ms, color=colour, hatch=hatch)
        bar.patches[0].set(edgecolor=BLACK, linewidth=0.4)
        axes.annotate(
            str(one.action.microbatch + 1),
            (1e3 * ((one.start_s + one.end_s) / 2), one.stage),
            ha="center",
            va="center",
            fontsize=SMALL,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
        )
    axes.set_yticks(stages, [f"stage {stage}" for stage in stages])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.01e3 * max(one.end_s for one in appendix.example))
    axes.set_xlabel("time, ms (microbatches are numbered from 1)")
    axes.set_title("Appendix C: one outstanding microbatch per stage saves everything")
    handles: list[Artist] = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=BLACK, label=label)
        for colour, hatch, label in _FILLS.values()
    ]
    legend_of(figure, handles, columns=2)
    return figure
