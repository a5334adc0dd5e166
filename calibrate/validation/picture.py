"""Figure of a validation: errors of predicted times, by measured time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calibrate.validation.limits import Limits
from calibrate.validation.profile import Validation
from simtrain.figures import style
from simtrain.figures.labels import set_logarithmic
from simtrain.figures.subject import footer_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKS = {
    "forward": ("o", style.BLUE),
    "backward": ("s", style.VERMILLION),
    "iteration": ("^", style.GREEN),
}


def write_validation_picture(
    validation: Validation, limits: Limits, folder: Path, profile: str
) -> tuple[Path, ...]:
    """Write `validation.png` and `.svg` to an existing folder; `profile` is its name or path.

    Raises:
        InputError: the folder cannot be written to.
    """
    origin = footer_of(f"validation on {validation.device}", profile)
    path = folder / "validation"
    return style.write_figure(draw_validation(validation, limits), path, origin)


@style.picture
def draw_validation(validation: Validation, limits: Limits) -> Figure:
    """Draw the error of each layer and iteration by its measured time, with the limits."""
    figure, axes = style.new_axes(7.5, 3.6)
    axes.set_title(
        f"Times predicted by {validation.profile}, measured on {validation.device}", fontsize=9
    )
    for name, limit, alpha in (
        ("each layer", limits.layers_worst, 0.25),
        ("mean of layers", limits.layers_mean, 0.45),
    ):
        label = f"limit, {name}: ±{100 * limit:.3g} %"
        axes.axhspan(-100 * limit, 100 * limit, color=style.SKY, alpha=alpha, lw=0, label=label)
    for side in (-1, 1):
        label = f"limit, each iteration: ±{100 * limits.iterations_worst:.3g} %" if side > 0 else ""
        limit = 100 * side * limits.iterations_worst
        axes.axhline(limit, color=style.GREEN, ls="--", lw=0.8, label=label)
    axes.axhline(0, color=style.BLACK, linewidth=0.8)
    rows = [row for part in validation.parts if part.unit == "s" for row in part.rows]
    for what, (marker, colour) in _MARKS.items():
        points = [(1e3 * row.measured, 100 * row.error) for row in rows if row.labels[-1] == what]
        if points:
            found = zip(*points, strict=True)
            axes.plot(*found, marker, color=colour, ms=4, mfc="none", label=what)
    set_logarithmic(axes.xaxis, [1e3 * row.measured for row in rows])
    axes.set_xlabel("measured time, ms")
    axes.set_ylabel("error of the predicted time, %")
    style.draw_grid_lines(axes)
    style.legend_below(figure, axes, columns=3)
    return figure
