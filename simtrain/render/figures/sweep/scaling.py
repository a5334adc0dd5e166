"""Scaling curves: the best throughput per number of GPUs, compared with linear scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from simtrain.base.strict_yaml import as_scalar
from simtrain.render.figures import style
from simtrain.render.figures.labels import separate_labels, set_logarithmic
from simtrain.render.figures.sweep.results import Cell, Results, best_values, short_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

_CURVES = (
    (style.BLUE, "o"),
    (style.VERMILLION, "s"),
    (style.GREEN, "^"),
    (style.PURPLE, "D"),
    (style.ORANGE, "v"),
    (style.SKY, "P"),
)
_AXIS_POINTS, _DIGIT_POINTS = 440, 7
"""Estimated width of the horizontal axis, and of a digit in its labels, in points."""


@dataclass(frozen=True, slots=True)
class ScalingCurves:
    """For each panel, the best tokens per second by number of GPUs, in ascending order."""

    results: Results
    curves: dict[Cell, dict[int, float]]

    @property
    def throughput(self) -> dict[str, Any]:
        """Tokens per second by number of GPUs, for each panel."""
        return _named(self.curves)

    @property
    def efficiency(self) -> dict[str, Any]:
        """The throughput as a share of linear scaling, for each panel."""
        return _named({panel: efficiency(curve) for panel, curve in self.curves.items()})


def _named(curves: Mapping[Cell, dict[int, float]]) -> dict[str, Any]:
    return {
        as_scalar(panel): {str(count): value for count, value in curve.items()}
        for panel, curve in curves.items()
    }


def efficiency(curve: dict[int, float]) -> dict[int, float]:
    """Throughput as a share of linear scaling from the smallest number of GPUs."""
    return {count: curve[count] / ideal for count, ideal in _ideal(curve).items()}


def _ideal(curve: dict[int, float]) -> dict[int, float]:
    """Tokens per second of linear scaling from the smallest number of GPUs."""
    fewest = min(curve)
    return {count: curve[fewest] / fewest * count for count in curve}


def scaling(results: Results) -> ScalingCurves | None:
    """Build the curves.

    Returns None if every panel has a single number of GPUs, or if a needed column was not reported.
    """
    if not results.has("num_gpus", "tokens_per_s"):
        return None
    ran = results.ran
    curves: dict[Cell, dict[int, float]] = {}
    for panel in results.panels:
        rates = best_values(results.of_panel(panel, ran), ["num_gpus"], "tokens_per_s")
        counts = sorted((count, rate) for (count,), rate in rates.items() if isinstance(count, int))
        if len(counts) > 1:
            curves[panel] = dict(counts)
    return ScalingCurves(results, curves) if curves else None


@style.picture
def draw_scaling(picture: ScalingCurves) -> Figure:
    """Draw all panels in one log-log plot; percentages are efficiencies."""
    figure, axes = style.new_axes(7.5, 4.6)
    curves = picture.curves
    efficiencies: list[Annotation] = []
    for at, (panel, curve) in enumerate(curves.items()):
        efficiencies += _draw_curve(axes, short_words(panel), curve, *_CURVES[at % len(_CURVES)])
    counts = sorted({count for curve in curves.values() for count in curve})
    ideals = [rate for curve in curves.values() for rate in _ideal(curve).values()]
    rates = [rate for curve in curves.values() for rate in curve.values()]
    set_logarithmic(axes.yaxis, [*ideals, *rates])
    set_logarithmic(axes.xaxis, counts)
    if _has_room(counts):
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set(xlabel="GPUs", ylabel="tokens per second")
    axes.set_title(f"{picture.results.name}: best throughput, and its share of linear scaling")
    style.draw_grid_lines(axes)
    style.legend_below(figure, axes, columns=2 if len(curves) > 1 else 3)
    separate_labels(figure, efficiencies)
    return figure


def _has_room(counts: list[int]) -> bool:
    """Whether there is room for a tick label at each number of GPUs."""
    points = _AXIS_POINTS / math.log(counts[-1] / counts[0])
    return all(
        points * math.log(right / left) > _DIGIT_POINTS * (len(f"{right:,}") + 1)
        for left, right in pairwise(counts)
    )


def _draw_curve(
    axes: Axes, name: str, curve: dict[int, float], colour: str, marker: str
) -> list[Annotation]:
    """Draw a curve and its ideal line; return the labels of its efficiencies."""
    ideal = f"{name}: linear scaling" if name else "linear scaling"
    how: dict[str, Any] = {"color": colour, "alpha": 0.5, "linewidth": 1, "label": ideal}
    axes.plot([*curve], [*_ideal(curve).values()], "--", **how)
    how = {"color": colour, "markersize": 4, "label": name or "best"}
    axes.plot([*curve], [*curve.values()], f"{marker}-", **how)
    return [
        style.annotate(axes, f"{share:.0%}", (count, curve[count]), (0, -12), color=colour)
        for count, share in [*efficiency(curve).items()][1:]
    ]
