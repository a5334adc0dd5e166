"""Text in figures: ticks of logarithmic axes, wrapped names, and labels without overlap."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

_MANTISSAS = (1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_FEWEST_TICKS = 4
_PREFIXES = (1e9, "G"), (1e6, "M"), (1e3, "k")
_MOST_DIGITS = 6
_BREAKS = re.compile(r"(?<=[ +_./,])")
# Offsets of a label from its marked point, in points: below, above, right, left, further away.
_OFFSETS = (0.0, -9.0), (0.0, 4.0), (8.0, -2.5), (-8.0, -2.5), (0.0, -17.0), (0.0, 12.0)


def set_logarithmic(axis: Axis, values: Sequence[float], margin: float = 1.15) -> None:
    """Make an axis logarithmic, with limits around the values and a distinct label per tick."""
    low, high = min(values) / margin, max(values) * margin
    set_scale, set_limits = (
        (axis.axes.set_xscale, axis.axes.set_xlim)
        if axis is axis.axes.xaxis
        else (axis.axes.set_yscale, axis.axes.set_ylim)
    )
    set_scale("log")
    set_limits(low, high)
    ticks = log_ticks(low, high)
    axis.set_ticks(ticks, distinct_labels(ticks))
    axis.set_ticks([], minor=True)


def log_ticks(low: float, high: float) -> list[float]:
    """Choose four or more ticks: powers of ten if they suffice, round numbers otherwise."""
    from matplotlib.ticker import MaxNLocator

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in _MANTISSAS:
        ticks = [mantissa * 10.0**decade for decade in decades for mantissa in mantissas]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= _FEWEST_TICKS:
            return inside
    linear = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in linear if low <= tick <= high]


def distinct_labels(values: Sequence[float]) -> list[str]:
    """Format numbers as 14k or 2.5M, with the fewest digits that keep them distinct and exact."""
    for digits in range(1, _MOST_DIGITS):
        labels = [_short(value, digits) for value in values]
        exact = all(abs(_rounded(value, digits) - value) <= 1e-9 * abs(value) for value in values)
        if len(set(labels)) == len(set(values)) and exact:
            return labels
    return [f"{value:,.{_MOST_DIGITS}g}" for value in values]


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _short(value: float, digits: int) -> str:
    rounded = _rounded(value, digits)
    for scale, prefix in _PREFIXES:
        if abs(rounded) >= scale:
            return f"{rounded / scale:.{_MOST_DIGITS}g}{prefix}"
    return f"{rounded:.{_MOST_DIGITS}g}"


def wrap(text: str, width: int) -> str:
    """Break text after spaces and punctuation into lines of at most `width` characters.

    A word longer than `width` keeps a line of its own.
    """
    lines = [""]
    for piece in _BREAKS.split(text):
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def separate_labels(figure: Figure, labels: Sequence[Annotation]) -> None:
    """Move labels away from other labels of the list; remove a label that fits nowhere.

    Labels are placed in order. Each takes the first offset at which it lies within its axes, and
    overlaps neither a label that is already placed nor the marked point of another label.
    """
    for label in labels:
        label.set_in_layout(False)
    figure.draw_without_rendering()
    placed: list[Bbox] = []
    for label in labels:
        points = [_around(other) for other in labels if other is not label]
        for offset in (label.xyann, *_OFFSETS):
            label.xyann = offset
            box = label.get_window_extent()
            if label.axes and not _contains(label.axes.bbox, box):
                continue
            if not any(box.overlaps(other) for other in [*placed, *points]):
                placed.append(box)
                break
        else:
            label.remove()


def _around(label: Annotation) -> Bbox:
    """Return the box of the marker at a label's point, in pixels."""
    from matplotlib.transforms import Bbox

    x, y = label.axes.transData.transform(label.xy) if label.axes else (0.0, 0.0)
    return Bbox([[x - 3, y - 3], [x + 3, y + 3]])


def _contains(outer: Bbox, inner: Bbox) -> bool:
    slack = 2.0  # pixels: text may touch the frame
    return bool(
        outer.x0 - slack <= inner.x0
        and inner.x1 <= outer.x1 + slack
        and outer.y0 - slack <= inner.y0
        and inner.y1 <= outer.y1 + slack
    )
