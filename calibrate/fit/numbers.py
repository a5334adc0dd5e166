"""Numbers that fits find: their rounding, and the searches for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from scipy.optimize import minimize

from simtrain.comparison import Comparison

Model = TypeVar("Model")
Op = TypeVar("Op")


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

    Logarithms keep one odd measurement from bending the model.

    Args:
        model: makes the model of the numbers that are searched.
        start: where the search starts.
        measured: each op with its time or rate.
        predict: the same time or rate of an op under a model.
        digits: significant digits of the numbers.
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
