"""Scatter plot of a validation: predicted over measured times; both are equal on the diagonal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calibrate.validation.limits import Limits
from calibrate.validation.profile import Validation
from simtrain.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_validation_picture(
    validation: Validation, limits: Limits, folder: Path
) -> tuple[Path, ...]:
    """Write `folder/validation.png` and `.svg`.

    Raises:
        InputError: the folder cannot be written to.
    """
    return style.write_figure(lambda: draw_validation(validation, limits), folder / "validation")


def draw_validation(validation: Validation, limits: Limits) -> Figure:
    """Draw times of layers and iterations, log-log, with bands of the limits of layers."""
    figure = style.new_figure(5.0, 5.0)
    axes = figure.subplots()
    axes.set_title(f"{validation.profile}, measured on {validation.device}", loc="left", fontsize=9)
    span_ms = _span_ms(validation)
    axes.set(xscale="log", yscale="log", xlim=span_ms, ylim=span_ms)
    style.plain_numbers(axes.xaxis, axes.yaxis)
    _draw_bands(axes, span_ms, limits)
    _draw_marks(axes, validation)
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("predicted, ms")
    axes.set_aspect("equal")
    style.legend_below(figure, axes, columns=3)
    return figure


def _draw_bands(axes: Axes, span_ms: tuple[float, float], limits: Limits) -> None:
    for limit, alpha in ((limits.layers_worst, 0.25), (limits.layers_mean, 0.45)):
        low, high = ([end * factor for end in span_ms] for factor in (1 - limit, 1 + limit))
        label = f"±{100 * limit:.3g} %"
        axes.fill_between(span_ms, low, high, color=style.SKY, alpha=alpha, lw=0, label=label)
    axes.plot(span_ms, span_ms, color=style.BLACK, linewidth=0.8, label="equal")


def _draw_marks(axes: Axes, validation: Validation) -> None:
    marks = {
        "forward": ("o", style.BLUE),
        "backward": ("s", style.VERMILLION),
        "iteration": ("^", style.GREEN),
    }
    rows = [row for part in validation.parts for row in part.rows]
    for what, (marker, colour) in marks.items():
        points = [
            (1e3 * row.measured, 1e3 * row.predicted) for row in rows if row.labels[-1] == what
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True), marker, color=colour, ms=4, mfc="none", label=what
            )


def _span_ms(validation: Validation) -> tuple[float, float]:
    """Ends of both axes: below the smallest and above the largest time."""
    times = [
        1e3 * seconds
        for part in validation.parts
        if part.unit == "s"
        for row in part.rows
        for seconds in (row.measured, row.predicted)
    ]
    return min(times) / 1.5, max(times) * 1.5
