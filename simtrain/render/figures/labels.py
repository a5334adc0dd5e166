"""Ticks of logarithmic axes with distinct labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis

_MANTISSAS = (1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_FEWEST_TICKS = 4
_PREFIXES = (1e9, "G"), (1e6, "M"), (1e3, "k")
_MOST_DIGITS = 6


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
