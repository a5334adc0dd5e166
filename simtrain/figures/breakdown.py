"""Time of each pipeline stage by cause, as a stacked bar chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.figures import style
from simtrain.figures.iteration_memory import subject_of
from simtrain.report.breakdown import CAUSE_LABELS
from simtrain.report.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILLS = (
    *(style.SKY, style.YELLOW, style.GREY, style.BLUE),
    *(style.PURPLE, style.VERMILLION, style.WHITE, style.GREEN),
)

_MOST_OUTLINED = 32
"""Bars have an outline up to this number of stages."""


def draw_breakdown(result: Result) -> Figure:
    """Draw one stacked bar per stage: its seconds by cause, which sum to the iteration time."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = style.new_axes(7.5, 4.2)
    stages = range(result.num_stages)
    bottom = [0.0] * len(stages)
    for (name, label), fill in zip(CAUSE_LABELS.items(), FILLS, strict=True):
        heights = [getattr(stage, name) for stage in result.stages]
        line = 0.4 if len(stages) <= _MOST_OUTLINED else 0.0
        axes.bar(stages, heights, 0.85, bottom, fc=fill, ec=style.BLACK, lw=line, label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_title(f"Time per pipeline stage of {subject_of(result)}")
    axes.set(xlabel="pipeline stage", ylabel="time, s")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    style.draw_grid_lines(axes)
    style.legend_below(figure, axes, columns=2)
    return figure
