"""Memory of one iteration: peak by stage and component, and use over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simtrain.iteration.report.result import Result, check_is_result
from simtrain.iteration.report.windows import windows_of
from simtrain.render.figures import style
from simtrain.render.figures.subject import subject_of
from simtrain.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Neighbours in a stack differ in lightness and in hatch: they stay distinct in greyscale.
COMPONENT_FILLS = {
    "parameters": (style.BLUE, ""),
    "gradients": (style.SKY, "//"),
    "optimizer": (style.PURPLE, "\\\\"),
    "activations": (style.ORANGE, ""),
    "buffers": (style.GREEN, "xx"),
    "allocator": (style.GREY, ".."),
}
"""The colour and the hatch of each component of memory."""
_LINES = (style.BLUE, "-"), (style.ORANGE, "--"), (style.BLACK, ":")


@style.picture
def plot_memory(result: Result) -> Figure:
    """Draw the peak memory of each stage by component, and the memory of three stages over time.

    Raises:
        InputError: matplotlib is not installed (E701).
    """
    check_is_result(result)
    figure = style.new_figure(7.5, 4.0)
    figure.suptitle(f"Memory per GPU of {subject_of(result)}", fontsize=10)
    windows = windows_of(result)
    ratios = [len(windows), *[1] * len(windows)]
    peaks, *curves = figure.subplots(1, len(ratios), sharey=True, width_ratios=ratios)
    _draw_peaks(peaks, result)
    for axes, (name, window_s) in zip(curves, windows.items(), strict=True):
        draw_curves(axes, result, range(result.num_stages))
        if axes is curves[0]:
            columns = 3 if len(windows) == 1 else 1
            axes.legend(
                loc="lower center", ncols=columns, frameon=True, framealpha=0.9, edgecolor="none"
            )
        draw_capacity(axes, result)
        axes.set_xlim(*window_s)
        axes.set_xlabel(f"{name or 'time'}, s")
    stages = f" ({_which_stages(result)})" if len(windows) == 1 else ""
    curves[0].set_title(f"over the iteration{stages}", fontsize=9)
    style.legend_below(figure, peaks, columns=4)
    return figure


def _draw_peaks(axes: Axes, result: Result) -> None:
    """Draw one bar per stage, with persistent components below temporary ones."""
    heights = {
        label: [stage.components_bytes[name] / GIB for stage in result.memory.stages]
        for name, label in result.memory.labels.items()
    }
    style.draw_stage_bars(axes, heights, COMPONENT_FILLS.values())
    axes.set_title("peak per stage", fontsize=9)
    axes.set_ylabel("memory per GPU, GiB")
    draw_capacity(axes, result)


def _which_stages(result: Result) -> str:
    last = result.num_stages - 1
    return "first, middle and last stage" if last > 1 else "each stage" if last else "one stage"


def draw_curves(axes: Axes, result: Result, stages: Sequence[int]) -> None:
    """Draw memory over time for the first, middle and last of `stages`."""
    last = len(stages) - 1
    places = sorted({0, last // 2, last})
    for place, (colour, line) in zip(places, _LINES, strict=False):
        stage = stages[place]
        curve = result.memory_curve(stage)
        held_gib = [num_bytes / GIB for num_bytes in (*curve.held_bytes, curve.held_bytes[-1])]
        times_s = (*curve.times_s, result.timeline.makespan_s)
        name = f"stage {stage}"
        axes.step(times_s, held_gib, line, where="post", color=colour, linewidth=0.9, label=name)


def draw_capacity(axes: Axes, result: Result) -> None:
    """Draw a dashed line at the memory capacity of a GPU."""
    capacity = result.memory.capacity_bytes / GIB
    label = f"capacity, {capacity:.4g} GiB"
    axes.axhline(capacity, color=style.VERMILLION, linestyle="-.", linewidth=1.2, label=label)
    style.draw_grid_lines(axes)
