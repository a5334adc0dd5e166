"""The memory of an iteration as a picture: by stage and component, and over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.figures import style
from simtrain.memory.report import COMPONENTS
from simtrain.report.result import Result
from simtrain.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_memory_figure(result: Result, folder: Path) -> tuple[Path, ...]:
    """Write `folder/memory.png` and `.svg`.

    Raises:
        InputError: the folder cannot be written to.
    """
    return style.write_figure(lambda: _draw(result), folder / "memory")


def _draw(result: Result) -> Figure:
    figure = style.new_figure(7.5, 4.0)
    figure.suptitle(f"Memory of {result.scenario.name or 'the scenario'}", fontsize=10)
    peaks, curves = figure.subplots(1, 2, sharey=True)
    _draw_peaks(peaks, result)
    _draw_curves(curves, result)
    style.legend_below(figure, peaks, columns=4)
    return figure


def _draw_peaks(axes: Axes, result: Result) -> None:
    """A bar a stage: its components, from those that stay to those that come and go."""
    from matplotlib.ticker import MaxNLocator

    # Light beside dark where two components meet, so that greys tell them apart too.
    fills = (style.BLUE, style.SKY, style.PURPLE, style.ORANGE, style.GREEN, style.GREY)
    stages = [stage.stage for stage in result.memory.stages]
    bottom = [0.0] * len(stages)
    for name, fill in zip(COMPONENTS, fills, strict=True):
        heights = [stage.components_bytes[name] / GIB for stage in result.memory.stages]
        axes.bar(stages, heights, 0.85, bottom, color=fill, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_title("peak of each stage", fontsize=9)
    axes.set(xlabel="pipeline stage", ylabel="memory of a GPU, GiB")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_capacity(axes, result)


def _draw_curves(axes: Axes, result: Result) -> None:
    """First, middle and last stage over the iteration."""
    last = len(result.memory.stages) - 1
    colours = (style.BLUE, style.ORANGE, style.BLACK)
    for stage, colour in zip(sorted({0, last // 2, last}), colours, strict=False):
        curve = result.memory_curve(stage)
        held = [num_bytes / GIB for num_bytes in (*curve.held_bytes, curve.held_bytes[-1])]
        times_s = (*curve.times_s, result.iteration_time_s)
        name = f"stage {stage}"
        axes.step(times_s, held, where="post", color=colour, linewidth=0.8, label=name)
    axes.legend(loc="lower center", ncols=3)
    axes.set_title("over the iteration", fontsize=9)
    axes.set_xlabel("time, s")
    _draw_capacity(axes, result)


def _draw_capacity(axes: Axes, result: Result) -> None:
    capacity = result.memory.capacity_bytes / GIB
    label = f"capacity, {capacity:.4g} GiB"
    axes.axhline(capacity, color=style.VERMILLION, linestyle="--", linewidth=1.2, label=label)
    style.rule_lines(axes)
