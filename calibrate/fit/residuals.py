"""How far a fit is from what it was fitted on, and how that is printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Residual:
    """One measured number beside the fitted one, in the same unit."""

    name: str
    measured: float
    fitted: float

    @property
    def error(self) -> float:
        """Relative error: fitted / measured - 1."""
        return self.fitted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Residuals:
    """The residuals of one part of a fit."""

    title: str
    unit: str
    rows: Sequence[Residual]

    @property
    def mean_abs_error(self) -> float:
        """Mean of |error|."""
        return math.fsum(abs(row.error) for row in self.rows) / len(self.rows)

    @property
    def max_abs_error(self) -> float:
        """Largest |error|."""
        return max(abs(row.error) for row in self.rows)

    @property
    def mean_factor(self) -> float:
        """How many times too much or too little in the mean: exp of the mean |log|, 1 or more."""
        logs = (abs(math.log(row.fitted / row.measured)) for row in self.rows)
        return math.exp(math.fsum(logs) / len(self.rows))

    @property
    def worst(self) -> Residual:
        """The row that is most times too much or too little."""
        return max(self.rows, key=lambda row: abs(math.log(row.fitted / row.measured)))

    def summary(self) -> str:
        """One line: how many, mean and worst."""
        if not self.rows:
            return "nothing yet"
        return (
            f"{len(self.rows)} points, mean |error| {self.mean_abs_error:.1%}, "
            f"worst {self.max_abs_error:.1%}"
        )


def round_significant(value: float, digits: int = 4) -> float:
    """The value with so many significant digits: what a fit can know, and the same everywhere."""
    return float(f"{value:.{digits - 1}e}")
