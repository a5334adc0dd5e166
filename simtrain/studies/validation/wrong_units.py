"""Columns of measured runs whose numbers are in another unit than the column's name says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simtrain.units import counted

_MOST_OFF = 5.0
"""A right prediction is off by less; and so is one in the wrong unit, after its factor."""
_REMEDIES = {
    ("s", 3): "in milliseconds: name the column iteration_time_ms",
    ("s", 6): "in microseconds: divide it by 1e6",
    ("ms", -3): "in seconds: name the column iteration_time_s",
    ("ms", 3): "in microseconds: divide it by 1,000",
    ("bytes", -3): "in kB: multiply it by 1,000",
    ("bytes", -6): "in MB: multiply it by 1e6",
    ("bytes", -9): "in GB: name the column peak_mem_gb",
    ("gb", 3): "in MB: divide it by 1,000",
    ("gb", 6): "in kB: divide it by 1e6",
    ("gb", 9): "in bytes: name the column peak_bytes",
}
"""What numbers probably are that are off by a power of ten, by the unit that their column names."""
_OTHERWISE = "in another unit: correct it"


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """A measured figure beside its prediction.

    Args:
        column: the name that the source gives to it.
        unit: s or bytes.
        measured, predicted: in this unit.
    """

    column: str
    unit: str
    measured: float
    predicted: float


def wrong_units(figures: Iterable[MeasuredFigure]) -> Iterator[str]:
    """Yield a sentence for each column whose numbers are off by a power of a thousand."""
    columns: dict[tuple[str, str], list[int]] = {}
    for figure in figures:
        columns.setdefault((figure.column, figure.unit), []).append(_power(figure))
    for (column, unit), powers in columns.items():
        for power in sorted({*powers} - {0}):
            number, factor = powers.count(power), f"{10 ** abs(power):,}"
            off = f"{factor} times the" if power > 0 else f"1/{factor} of the"
            remedy = _REMEDIES.get((_unit_of(column, unit), power), _OTHERWISE)
            yield (
                f"{column or 'the figure'} of {number:,} of {counted(len(powers), 'run')} is about "
                f"{off} prediction, probably {remedy}"
            )


def _unit_of(column: str, unit: str) -> str:
    """Return the unit that the name of a column says, or that of the figure."""
    words = {*re.split(r"[^a-z]+", column.lower())}
    if "ms" in words:
        return "ms"
    return "gb" if words & {"gb", "gib"} else unit


def _power(figure: MeasuredFigure) -> int:
    """Return the power of ten by which the unit of a figure is off, 0 if it may be right."""
    if figure.predicted <= 0 or figure.measured <= 0:
        return 0
    ratio = math.log10(figure.measured / figure.predicted)
    power = 3 * round(ratio / 3)
    return power if abs(ratio - power) <= math.log10(_MOST_OFF) else 0
