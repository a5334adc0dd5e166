"""A training that was drawn, over its days, and where the hours of all trainings go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.render.figures import style
from simtrain.studies.goodput.goodput import Goodput
from simtrain.studies.goodput.training import (
    DETECTION,
    DIAGNOSIS,
    LOST,
    MISSING,
    RECONFIGURATION,
    RESTART,
    SAVING,
    WAITING,
    WORK,
)
from simtrain.units import DAY_S, HOUR_S
from simtrain.views.goodput import training_lanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {
    WORK: "#9CC5A1",
    LOST: "#D1495B",
    SAVING: "#EDAE49",
    DETECTION: "#7D5BA6",
    DIAGNOSIS: "#B08BBB",
    RESTART: "#30638E",
    WAITING: "#3D405B",
    RECONFIGURATION: "#66A5AD",
    MISSING: "#A0A0A0",
}
_ROWS_PER_TRAINING = 8
"""Rows of the picture; each shows an equal part of the training."""


@style.picture
def plot_goodput(goodput: Goodput) -> Figure:
    """Draw the first training over its days, and the mean hours lost to each cause.

    Raises:
        InputError: matplotlib is not installed (E701).
    """
    figure = style.new_figure(10.0, 5.2)
    above, below = figure.subplots(2, 1, height_ratios=[3, 2])
    training = goodput.trainings[0]
    row_s = training.time_s / _ROWS_PER_TRAINING
    lanes = training_lanes(training, _ROWS_PER_TRAINING)
    for kind, color in _COLORS.items():
        for row, lane in enumerate(lanes):
            bars = [
                (span.start_s / DAY_S, (span.end_s - span.start_s) / DAY_S)
                for span in lane.spans
                if span.kind == kind
            ]
            above.broken_barh(bars, (row - 0.4, 0.8), facecolors=color, linewidth=0)
    above.set_xlim(0, row_s / DAY_S)
    above.set_ylim(_ROWS_PER_TRAINING - 0.5, -0.5)
    ticks = range(_ROWS_PER_TRAINING)
    above.set_yticks(ticks, [lane.name for lane in lanes])
    above.set_xlabel("days from the start of the row")
    above.set_title(f"One training of {goodput.num_gpus:,} GPUs", loc="left")
    hours = {kind: lost.mean for kind, lost in goodput.lost_hours.items() if lost.mean}
    hours = dict(sorted(hours.items(), key=lambda item: item[1]))
    below.barh(list(hours), list(hours.values()), color=[_COLORS[kind] for kind in hours])
    below.set_xlabel(f"mean hours lost of {goodput.days.mean * DAY_S / HOUR_S:,.0f}")
    style.draw_grid_lines(below, "x")
    return figure
