"""Time of each pipeline stage by cause, as a stacked bar chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.result import Result, check_is_result
from simtrain.render.figures import style
from simtrain.render.figures.subject import subject_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILLS = (
    *(style.SKY, style.YELLOW, style.GREY, style.BLUE),
    *(style.PURPLE, style.VERMILLION, "#A6761D", style.WHITE, style.GREEN),
)


@style.picture
def plot_breakdown(result: Result) -> Figure:
    """Draw the time of each stage by cause, as stacked bars that add up to the iteration time.

    Raises:
        InputError: matplotlib is not installed (E701).
    """
    check_is_result(result)
    figure, axes = style.new_axes()
    heights = {
        label: [getattr(stage, name) for stage in result.stages]
        for name, label in CAUSE_LABELS.items()
    }
    style.draw_stage_bars(axes, heights, [(colour, "") for colour in FILLS])
    axes.set_title(f"Time per pipeline stage of {subject_of(result)}")
    axes.set_ylabel("time, s")
    style.draw_grid_lines(axes)
    style.legend_below(figure, axes, columns=2)
    return figure
