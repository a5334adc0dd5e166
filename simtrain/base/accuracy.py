"""Predicted and measured numbers: statistics of their errors, and thresholds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

from simtrain.base.values import dataclass


class ErrorStatistics(ABC):
    """Statistics of relative errors, and their thresholds.

    Args:
        mean_threshold: largest mean of |error|; None if there is none.
        max_threshold: largest |error| of one pair; None if there is none.
    """

    mean_threshold: float | None
    max_threshold: float | None

    @property
    @abstractmethod
    def errors(self) -> Sequence[float]:
        """Relative errors: predicted / measured - 1."""

    @property
    def mean_abs_error(self) -> float:
        return math.fsum(map(abs, self.errors)) / len(self.errors)

    @property
    def max_abs_error(self) -> float:
        return max(map(abs, self.errors))

    @property
    def bias(self) -> float:
        return math.fsum(self.errors) / len(self.errors)

    @property
    def misses(self) -> tuple[str, ...]:
        limited = (
            ("mean", self.mean_abs_error, self.mean_threshold),
            ("largest", self.max_abs_error, self.max_threshold),
        )
        return tuple(
            f"{name} |error| {error:.2%} above {threshold:.2%}"
            for name, error, threshold in limited
            if threshold is not None and error > threshold
        )

    @property
    def ok(self) -> bool:
        return not self.misses


@dataclass(frozen=True, slots=True)
class Pair:
    """A measured number and the predicted one, in the same unit; `labels` say what of."""

    labels: tuple[str, ...]
    measured: float
    predicted: float

    @property
    def name(self) -> str:
        return ", ".join(self.labels)

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def log_ratio(self) -> float:
        return abs(math.log(self.predicted / self.measured))


@dataclass(frozen=True)
class ErrorTable(ErrorStatistics):
    """Pairs of one quantity in `unit`, and the thresholds of their errors."""

    title: str
    unit: str
    rows: Sequence[Pair]
    mean_threshold: float | None = None
    max_threshold: float | None = None

    @classmethod
    def of(cls, title: str, unit: str, rows: Iterable[tuple[str, float, float]]) -> Self:
        return cls(title, unit, [Pair((name,), *values) for name, *values in rows])

    @property
    def errors(self) -> list[float]:
        return [row.error for row in self.rows]

    @property
    def mean_log_ratio(self) -> float:
        return math.fsum(row.log_ratio for row in self.rows) / len(self.rows)

    @property
    def mean_factor(self) -> float:
        return math.exp(self.mean_log_ratio)

    @property
    def worst(self) -> Pair:
        return max(self.rows, key=lambda row: row.log_ratio)

    def summary(self) -> str:
        """One line: number of pairs, mean and worst |error|."""
        if not self.rows:
            return "nothing yet"
        return (
            f"{len(self.rows)} points, mean |error| {self.mean_abs_error:.1%}, "
            f"worst {self.max_abs_error:.1%}"
        )
