"""Entries of a profile, a value with its unit and source each, and the search for their values."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from scipy.optimize import minimize

from calibrate.records.schema import Header
from simtrain.base.accuracy import Comparison

Model = TypeVar("Model")
Op = TypeVar("Op")
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


def measured(origin: str, comparison: Comparison, only: str = "", otherwise: str = "") -> Evidence:
    """Evidence of records from an `origin`, or the source `otherwise` if there are none.

    `only` names the range that the records are limited to.
    """
    if not comparison.rows and otherwise:
        return lambda value: entry(value, otherwise)
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


def shape_range(ops: Sequence[Any], names: Sequence[str] = "mnk") -> Data:
    """The smallest and the largest of each size of ops; m, n and k are those of products."""
    ranges = {}
    for name in names:
        sizes = [getattr(op, name) for op in ops]
        ranges[name] = [min(sizes), max(sizes)]
    return ranges


def round_significant(value: float, digits: int = 4) -> float:
    """The value with `digits` significant digits: no fit knows more, and machines agree on them."""
    return float(f"{value:.{digits - 1}e}")


def round_up(value: float) -> float:
    """The value with four significant digits, never below itself."""
    rounded = round_significant(value)
    return rounded if rounded >= value else round_significant(value * 1.0005)


def microseconds(title: str, rows: Iterable[tuple[str, float, float]]) -> Comparison:
    """Compare measured and fitted seconds of named work, in microseconds."""
    in_us = ((name, measured * 1e6, fitted * 1e6) for name, measured, fitted in rows)
    return Comparison.of(title, "us", in_us)


def minimise(
    model: Callable[[Sequence[float]], Model],
    start: Sequence[float],
    measured: Sequence[tuple[Op, float]],
    predict: Callable[[Op, Model], float],
    digits: int = 4,
) -> Model:
    """The model of the positive numbers with the least mean |log(predicted / measured)|.

    Logarithms keep one odd measurement from bending the model. `model` makes it of the numbers that
    are searched, which have so many `digits` in the end; `measured` has each op with its time or
    rate, and `predict` finds the same under a model.
    """

    def loss(x: Sequence[float]) -> float:
        """Return the mean |log(predicted / measured)|; infinity unless all numbers are positive."""
        if min(x) <= 0:
            return math.inf
        candidate = model(x)
        errors = (abs(math.log(predict(op, candidate) / value)) for op, value in measured)
        return math.fsum(errors) / len(measured)

    options = {"adaptive": True, "maxiter": 3000, "xatol": 1e-5, "fatol": 1e-9}
    result = minimize(loss, start, method="Nelder-Mead", options=options)
    return model([round_significant(float(value), digits) for value in result.x])
