"""How the columns of results are named and written in pictures."""

from __future__ import annotations

from collections.abc import Callable

_GIB = 2**30
_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens_per_s": ("tokens per second", lambda value: _thousands(value)),
    "mfu": ("model FLOPs utilization", lambda value: f"{value:.1%}"),
    "hfu": ("hardware FLOPs utilization", lambda value: f"{value:.1%}"),
    "iteration_time_s": ("iteration time, s", lambda value: f"{value:.4g}"),
    "peak_bytes": ("peak memory, GiB", lambda value: f"{value / _GIB:.3g}"),
}


def title_of(column: str) -> str:
    """What a column is, for a reader."""
    if column in _QUANTITIES:
        return _QUANTITIES[column][0]
    return column.removeprefix("breakdown_").removesuffix("_s").replace("_", " ") + ", s"


def shown(column: str, value: float) -> str:
    """A value of a column, in a few digits."""
    if column in _QUANTITIES:
        return _QUANTITIES[column][1](value)
    return f"{value:.3g}"


def _thousands(value: float) -> str:
    """12.3k, 1.23M."""
    for scale, prefix in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{prefix}"
    return f"{value:.3g}"
