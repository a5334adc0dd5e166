"""How the columns of results are named and written in pictures."""

from __future__ import annotations

from collections.abc import Callable

from simtrain.units import GIB

_LONGEST_LABEL = 24
_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens_per_s": ("tokens per second", lambda value: _thousands(value)),
    "mfu": ("model FLOPs utilization", lambda value: f"{value:.1%}"),
    "hfu": ("hardware FLOPs utilization", lambda value: f"{value:.1%}"),
    "iteration_time_s": ("iteration time, s", lambda value: _few_digits(value, 4)),
    "peak_bytes": ("peak memory, GiB", lambda value: _few_digits(value / GIB)),
}


def title_of(column: str) -> str:
    """What a column is, for a reader."""
    if column in _QUANTITIES:
        return _QUANTITIES[column][0]
    return column.removeprefix("breakdown_").removesuffix("_s").replace("_", " ") + ", s"


def label_of(axis: str) -> str:
    """The name of an axis, on two lines where it is long."""
    sections, dot, field = axis.rpartition(".")
    return f"{sections}{dot}\n{field}" if len(axis) > _LONGEST_LABEL and dot else axis


def shown(column: str, value: float) -> str:
    """A value of a column, in a few digits."""
    if column in _QUANTITIES:
        return _QUANTITIES[column][1](value)
    return _few_digits(value)


def _few_digits(value: float, count: int = 3) -> str:
    """So many digits, and never an exponent for what is large."""
    rounded = float(f"{value:.{count}g}")
    return f"{rounded:.0f}" if rounded >= 10**count else f"{rounded:.{count}g}"


def _thousands(value: float) -> str:
    """12.3k, 1.23M, each prefix from what rounds to one of it on."""
    for scale, prefix in ((1e6, "M"), (1e3, "k")):
        if float(f"{value:.3g}") >= scale:
            return f"{_few_digits(value / scale)}{prefix}"
    return _few_digits(value)
