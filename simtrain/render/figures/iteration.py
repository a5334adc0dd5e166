"""Figures of an iteration: timelines, the time of each stage by cause, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simtrain.base.values import dataclass
from simtrain.engine.compiled import Floats
from simtrain.iteration.memory.report import COMPONENT_LABELS
from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.result import Result, check_is_result
from simtrain.iteration.report.spans import ACTIVITIES, Spans
from simtrain.iteration.report.windows import Window, check_selection, windows_of
from simtrain.render.figures import style
from simtrain.render.figures.style import subject_of
from simtrain.render.timeline_lanes import (
    FILLS,
    LABELS,
    MARKS,
    OWN,
    fills_of,
    lane_places,
    lanes_of,
)
from simtrain.units import GIB, format_seconds

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour and hatch. Neighbours in a stack differ in lightness too: they stay distinct in greyscale.
COMPONENT_FILLS = {
    "parameters": (style.BLUE, ""),
    "gradients": (style.SKY, "//"),
    "optimizer": (style.PURPLE, "\\\\"),
    "activations": (style.ORANGE, ""),
    "buffers": (style.GREEN, "xx"),
    "allocator": (style.GREY, ".."),
}
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
        for name, label in COMPONENT_LABELS.items()
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


CAUSE_FILLS = (
    *(style.SKY, style.YELLOW, style.GREY, style.BLUE),
    *(style.PURPLE, style.VERMILLION, style.WHITE, style.GREEN),
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
    style.draw_stage_bars(axes, heights, [(colour, "") for colour in CAUSE_FILLS])
    axes.set_title(f"Time per pipeline stage of {subject_of(result)}")
    axes.set_ylabel("time, s")
    style.draw_grid_lines(axes)
    style.legend_below(figure, axes, columns=2)
    return figure


_IDLE, _IDLE_NAME, _LINE_POINTS = "#E2E2E2", "idle", 0.3
_WIDTH_IN, _MEMORY_IN, _REST_IN = 10.0, 1.6, 1.1
# Total height of the stages' rows; the height of one row stays between the two limits.
_ROWS_IN, _LOW_IN, _HIGH_IN = 4.5, 0.07, 0.4
_POINTS_PER_IN = 72
_BARS_SHARE = 0.85  # the axes take 85 to 90 % of the picture's width
_MOST_DETAILED = 3000
"""Up to this number, bars have outlines and hatches, and stay vectors in an SVG."""
_MOST_LABELS = 16
_LEAST_POINTS, _POINTS_PER_DIGIT = 4.0, 0.65


@style.picture
def plot_timeline(
    result: Result,
    stages: Sequence[int] | None = None,
    window_s: tuple[float, float] | None = None,
    *,
    memory: bool = True,
) -> Figure:
    """Draw the activities of each stage over time, and the memory of three stages below.

    A long iteration is drawn in three parts: its start, a piece of its steady part, and its end.

    Args:
        result: the iteration.
        stages: the stages to draw; by default all.
        window_s: start and end of the time to draw, in seconds; by default the whole iteration, or
            the three parts of a long one (`windows_of`).
        memory: whether to draw memory.

    Raises:
        InputError: matplotlib is not installed (E701); a stage does not exist, or the window is
            outside the iteration (E118).
    """
    check_is_result(result)
    chosen, checked_s = check_selection(result, stages, window_s)
    windows = {"": checked_s} if window_s else windows_of(result)
    row_in = min(max(_ROWS_IN / len(chosen), _LOW_IN), _HIGH_IN)
    heights = [row_in * len(chosen)] + [_MEMORY_IN] * memory
    figure = style.new_figure(_WIDTH_IN, sum(heights) + _REST_IN)
    axes = figure.subplots(
        len(heights),
        len(windows),
        sharex="col",
        sharey="row",
        height_ratios=heights,
        squeeze=False,
    )
    seconds = format_seconds(result.iteration_time_s)
    axes[0, 0].set_title(f"One iteration of {subject_of(result)}: {seconds}")
    handles: dict[str, Artist] = {}
    has_chunks = result.scenario.parallelism.interleave > 1
    for place, (name, shown_s) in enumerate(windows.items()):
        visible = result.bars.within(chosen, shown_s)
        scale = Scale(shown_s, _BARS_SHARE * _WIDTH_IN / len(windows), row_in)
        handles |= draw_stages(axes[0, place], visible, chosen, scale)
        if memory:
            draw_curves(axes[1, place], result, chosen)
            draw_capacity(axes[1, place], result)
        words = f"{name or 'time'}, s"
        is_last = place == len(windows) - 1
        axes[-1, place].set_xlabel(words + " (later chunks are lighter)" * (has_chunks and is_last))
        axes[-1, place].set_xlim(*shown_s)
    if memory:
        axes[1, 0].set_ylabel("memory, GiB")
        axes[1, 0].set_ylim(bottom=0)
        axes[1, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    in_order = [handles[name] for name in (*FILLS, _IDLE_NAME) if name in handles]
    style.legend_of(figure, in_order, columns=4)
    return figure


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a part of the picture.

    Args:
        window_s: start and end of the time that it shows, in seconds.
        width_in: its width in inches.
        row_in: height of a stage's row in inches.
    """

    window_s: Window
    width_in: float
    row_in: float

    @property
    def points_per_s(self) -> float:
        return self.width_in * _POINTS_PER_IN / (self.window_s[1] - self.window_s[0])


def draw_stages(axes: Axes, bars: Spans, stages: list[int], scale: Scale) -> dict[str, Artist]:
    """Draw one row per stage; return the legend's handles by activity."""
    lanes, (top, height) = lanes_of(bars), lane_places(bars)
    middles = np.arange(len(stages)) + top[OWN] + height[OWN] / 2
    start_s, end_s = scale.window_s
    axes.barh(middles, end_s - start_s, height[OWN], start_s, color=_IDLE, zorder=0)
    place = np.searchsorted(stages, bars.stage)
    low, high = place + top[lanes], place + (top + height)[lanes]
    handles = _draw_bars(axes, bars, low, high, scale.points_per_s)
    _number(axes, bars, (low + high) / 2, scale, float(height[OWN]))
    axes.set_ylim(len(stages), 0)
    shown = range(0, len(stages), -(-len(stages) // _MOST_LABELS))
    axes.set_yticks(middles[shown], [f"stage {stages[place]}" for place in shown])
    axes.tick_params(axis="y", length=0)
    return handles


def _draw_bars(
    axes: Axes, bars: Spans, low: Floats, high: Floats, points_per_s: float
) -> dict[str, Artist]:
    """Draw the bars from `low` to `high`; return a legend patch for each activity drawn."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    left, right, is_own = bars.start_s, bars.end_s, lanes_of(bars) == OWN
    corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
    is_detailed = len(bars) <= _MOST_DETAILED
    has_outline = is_detailed & is_own & ((right - left) * points_per_s > 1)
    fills_of_chunks = fills_of(bars)
    handles: dict[str, Artist] = {}
    for number, (activity, (colour, hatch)) in enumerate(FILLS.items()):
        of_activity = bars.activity == number
        fills = fills_of_chunks[number, np.maximum(bars.chunk[of_activity], 0)]
        # Bars narrower than a line are drawn as wide as a line.
        outlined = has_outline[of_activity, np.newaxis]
        collection = PolyCollection(
            corners[of_activity],
            facecolors=fills,
            edgecolors=np.where(outlined, 0.0, fills),
            linewidths=_LINE_POINTS * (outlined[:, 0] | ~is_own[of_activity]),
            hatch=(hatch or None) if is_detailed else None,
            rasterized=not is_detailed,
            snap=False,
        )
        collection.set_hatchcolor(style.BLACK)
        axes.add_collection(collection, autolim=False)
        if of_activity.any():
            shown_hatch = hatch if is_detailed else ""
            handles[activity] = Patch(fc=colour, hatch=shown_hatch, label=LABELS[activity])
    handles[_IDLE_NAME] = Patch(fc=_IDLE, label=_IDLE_NAME)
    for handle in handles.values():
        handle.set(edgecolor=style.BLACK, linewidth=_LINE_POINTS)
    return handles


def _number(axes: Axes, bars: Spans, middle: Floats, scale: Scale, height: float) -> None:
    """Write the microbatch's number into each pass that is large enough, after its letter.

    Args:
        axes: where to write.
        bars: the bars.
        middle: [bars], the vertical place of each number.
        scale: the scale of the axes.
        height: height of a bar, as a share of its stage's row.
    """
    size = min(style.SMALL, 0.8 * height * scale.row_in * _POINTS_PER_IN)
    if size < _LEAST_POINTS:
        return
    start_s, end_s = bars.start_s.clip(*scale.window_s), bars.end_s.clip(*scale.window_s)
    marks = np.array([MARKS[name] for name in ACTIVITIES])
    texts = np.char.add(marks[bars.activity], bars.microbatch.astype(str))
    room = (end_s - start_s) * scale.points_per_s
    fits = room > size * _POINTS_PER_DIGIT * np.char.str_len(texts) + 1
    for bar in np.flatnonzero(fits & (bars.microbatch >= 0)).tolist():
        at_s, text = (start_s[bar] + end_s[bar]) / 2, str(texts[bar])
        axes.text(at_s, middle[bar], text, size=size, ha="center", va="center")
