"""Appendix C: which microbatches of which stage keep everything, over time (its Figure 10)."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simtrain.paper.kept_microbatches import AppendixC, Pass
from simtrain.pictures.style import BLACK, GREEN, ORANGE, SKY, SMALL, YELLOW, new_figure

_FILLS = {
    ("F", False): (SKY, "", "forward, keeps its input only"),
    ("F", True): (GREEN, "//", "forward, keeps everything"),
    ("B", False): (ORANGE, "", "recompute and backward"),
    ("B", True): (YELLOW, "//", "backward without recompute"),
}


def draw_window(appendix: AppendixC) -> Figure:
    """The timeline of the example, a row a stage, microbatches numbered from 1."""
    figure = new_figure(7.5, 2.9)
    axes = figure.subplots()
    stages = sorted({one.stage for one in appendix.example})
    for one in appendix.example:
        colour, hatch, _ = _FILLS[one.action.kind, one.keeps]
        axes.barh(
            one.stage,
            _milliseconds(one.end_s - one.start_s),
            0.9,
            _milliseconds(one.start_s),
            color=colour,
            hatch=hatch,
            edgecolor=BLACK,
            linewidth=0.4,
        )
        _number(axes, one)
    axes.set_yticks(stages, [f"stage {stage}" for stage in stages])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, _milliseconds(max(one.end_s for one in appendix.example)))
    axes.set_xlabel("time, ms (microbatches are numbered from 1)")
    axes.set_title(
        "Appendix C: one of each stage's outstanding microbatches keeps everything", loc="left"
    )
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=BLACK, label=label)
        for colour, hatch, label in _FILLS.values()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _number(axes: Axes, one: Pass) -> None:
    middle = (one.start_s + one.end_s) / 2
    axes.annotate(
        str(one.action.microbatch + 1),
        (_milliseconds(middle), one.stage),
        ha="center",
        va="center",
        fontsize=SMALL,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
    )


def _milliseconds(time_s: float) -> float:
    return 1e3 * time_s
