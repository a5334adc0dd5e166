"""Predicted against measured iteration times, one point a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.render.figures.labels import set_logarithmic
from simtrain.render.figures.style import BLACK, BLUE, GREY, VERMILLION, draw_grid_lines, new_axes
from simtrain.studies.validation import CLOSE, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_validation(validation: Validation) -> Figure:
    """Draw a point for each run; the dashed lines are 10 % above and below the measurement."""
    figure, axes = new_axes(6.0, 5.6)
    runs = [run for run in validation.rows if run.error is not None]
    colours = {True: BLUE, False: VERMILLION}
    for is_close, label in ((True, "within 10 %"), (False, "others")):
        points = [
            (run.measured_s, run.simulated_s)
            for run in runs
            if (abs(run.error or 0.0) <= CLOSE) is is_close
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                "o",
                color=colours[is_close],
                ms=4,
                mfc="none",
                label=f"{label} ({len(points)})",
            )
    times_s = [time_s for run in runs for time_s in (run.measured_s, run.simulated_s) if time_s]
    if times_s:
        set_logarithmic(axes.xaxis, times_s)
        set_logarithmic(axes.yaxis, times_s)
        ends = axes.get_xlim()
        axes.plot(ends, ends, color=BLACK, linewidth=0.8)
        for factor in (1 - CLOSE, 1 + CLOSE):
            axes.plot(ends, [factor * end for end in ends], "--", color=GREY, linewidth=0.8)
        axes.set(aspect="equal")
        axes.legend(frameon=False)
    axes.set(
        xlabel="measured iteration time, s",
        ylabel="predicted iteration time, s",
        title=f"{len(runs)} runs, predicted with {validation.cluster}",
    )
    draw_grid_lines(axes)
    return figure
