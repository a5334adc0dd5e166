"""Names and number formats of result columns in figures."""

from __future__ import annotations

from collections.abc import Callable

from simtrain.units import GIB, four_digits, significant

_LONGEST_LABEL = 24
_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens_per_s": ("tokens per second", lambda value: _thousands(value)),
    "mfu": ("model FLOPs utilization, %", lambda value: f"{value:.1%}"),
    "hfu": ("hardware FLOPs utilization, %", lambda value: f"{value:.1%}"),
    "iteration_time_s": ("iteration time, s", four_digits),
    "peak_bytes": ("peak memory per GPU, GiB", lambda value: significant(value / GIB, 3)),
}


def title_of(column: str) -> str:
    """Name of a column with its unit."""
    if column in _QUANTITIES:
        return _QUANTITIES[column][0]
    return column.removeprefix("breakdown_").removesuffix("_s").replace("_", " ") + ", s"


def label_of(axis: str) -> str:
    """Name of an axis; a long name has two lines."""
    sections, dot, field = axis.rpartition(".")
    return f"{sections}{dot}\n{field}" if len(axis) > _LONGEST_LABEL and dot else axis


def shown(column: str, value: float) -> str:
    """Format a value of a column with a few digits."""
    if column in _QUANTITIES:
        return _QUANTITIES[column][1](value)
    return significant(value, 3)


def _thousands(value: float) -> str:
    """Format as 12.3k or 1.23M; round before choosing the prefix."""
    for scale, prefix in ((1e6, "M"), (1e3, "k")):
        if float(f"{value:.3g}") >= scale:
            return f"{significant(value / scale, 3)}{prefix}"
    return significant(value, 3)
