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
    stages = sorted({span.stage for span in appendix.example})
    for span in appendix.example:
        colour, hatch, _ = _FILLS[span.action.kind, span.saves_all]
        start_ms, duration_ms = 1e3 * span.start_s, 1e3 * (span.end_s - span.start_s)
        bar = axes.barh(span.stage, duration_ms, 0.9, start_ms, color=colour, hatch=hatch)
        bar.patches[0].set(edgecolor=BLACK, linewidth=0.4)
        axes.annotate(
            str(span.action.microbatch + 1),
            (1e3 * ((span.start_s + span.end_s) / 2), span.stage),
            ha="center",
            va="center",
            fontsize=SMALL,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
        )
    axes.set_yticks(stages, [f"stage {stage}" for stage in stages])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.01e3 * max(span.end_s for span in appendix.example))
    axes.set_xlabel("time, ms (microbatches are numbered from 1)")
    axes.set_title("Appendix C: one outstanding microbatch per stage saves everything")
    handles: list[Artist] = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=BLACK, label=label)
        for colour, hatch, label in _FILLS.values()
    ]
    legend_of(figure, handles, columns=2)
    return figure
