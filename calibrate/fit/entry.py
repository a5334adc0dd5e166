"""Entries of a profile: a value with its unit, its source, and the measurements it is fitted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calibrate.records.schema import Header
from simtrain.comparison import Comparison

Data = dict[str, Any]
"""Plain data of a profile's file, or of a part of it."""
Evidence = Callable[[Any], Data]
"""Makes the entry of a value that is fitted on one set of measurements."""


def entry(value: Any, source: str, fitted_on: str | None = None) -> Data:
    """An entry; `fitted_on` describes the measurements that a fit used."""
    number = {"value": value, "source": source}
    return number if fitted_on is None else number | {"fitted_on": fitted_on}


def published(source: str, comparison: Comparison) -> Evidence:
    """Evidence of published figures."""
    return lambda value: entry(value, source, comparison.summary())


def measured(origin: str, comparison: Comparison, only: str = "") -> Evidence:
    """Evidence of records from an `origin`; `only` names the range that they are limited to."""
    points = f"{len(comparison.rows)} points: {comparison.title}{only}"
    return published(f"{origin}, {points}", comparison)


def origin_of(header: Header) -> str:
    """Device, date and torch of a measurement, as a source writes them."""
    torch = header.software.get("torch", "unknown")
    return f"measured on {header.device}, {header.date[:10]}, torch {torch}"


def tera(value: float, unit: str) -> str:
    """The value in 1e12 of the unit."""
    return f"{value / 1e12:.4g} T{unit}"


def giga(bytes_per_s: float) -> str:
    """The value in GB/s."""
    return f"{bytes_per_s / 1e9:.6g} GB/s"


def micro(seconds: float) -> str:
    """The value in us."""
    return f"{seconds * 1e6:.4g} us"


def shape_range(shapes: Sequence[Sequence[int]]) -> Data:
    """The smallest and the largest m, n and k of products."""
    axes = zip("mnk", zip(*shapes, strict=True), strict=True)
    return {name: [min(sizes), max(sizes)] for name, sizes in axes}
