"""Timelines of several schedules, one above the other on one time axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simtrain.iteration.report.result import Result
from simtrain.render.figures import style
from simtrain.render.figures.timeline import Scale, draw_stages, legend_of_activities
from simtrain.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_WIDTH_IN, _ROWS_IN, _TITLE_IN, _REST_IN, _HIGH_IN = 10.0, 1.4, 0.45, 1.0, 0.3


@style.picture
def plot_schedules(results: Mapping[str, Result]) -> Figure:
    """Draw the stages of each iteration over time, up to the end of the longest.

    Args:
        results: the iterations by the name of their schedule.
    """
    window_s = 0.0, max(result.timeline.makespan_s for result in results.values())
    num_stages = max(result.num_stages for result in results.values())
    row_in = min(_ROWS_IN / num_stages, _HIGH_IN)
    height_in = (row_in * num_stages + _TITLE_IN) * len(results) + _REST_IN
    figure = style.new_figure(_WIDTH_IN, height_in)
    axes = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    handles: dict[str, Artist] = {}
    scale = Scale(window_s, 0.9 * _WIDTH_IN, row_in)
    for place, (name, result) in zip(axes, results.items(), strict=True):
        stages = [*range(result.num_stages)]
        bars = result.bars.within(stages, window_s)
        handles |= draw_stages(place, bars, stages, scale)
        bubble = result.breakdown.bubble_s / result.breakdown.total_s
        words = f"{format_seconds(result.iteration_time_s)}, bubble {bubble:.1%}"
        place.set_title(f"{name}: {words}")
        place.set_xlim(*window_s)
    axes[-1].set_xlabel("time, s (later chunks are lighter)")
    style.legend_of(figure, legend_of_activities(handles), columns=4)
    return figure
