"""Published numbers beside simulated ones, their errors, and whether these are small enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Progress = Callable[[str, int, int], None]
"""Called with what is simulated next, how many are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published time and ours; `facts` are further figures of the row, by JSON name."""

    model: str
    strategy: str
    paper_s: float
    simulated_s: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Relative error: simulated / paper - 1."""
        return self.simulated_s / self.paper_s - 1

    def to_json(self) -> dict[str, Any]:
        """The row in full precision."""
        return {
            "model": self.model,
            "strategy": self.strategy,
            **self.facts,
            "paper_s": self.paper_s,
            "simulated_s": self.simulated_s,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Gain:
    """A throughput gain in the paper and here, as fractions, and how far apart they may be.

    A gain is a difference of two times of nearly the same size, so that it magnifies what errors
    these have: it is judged on its own, and the verdict is on the times.
    """

    model: str
    paper: float
    simulated: float
    threshold: float

    @property
    def error(self) -> float:
        """Simulated minus paper."""
        return self.simulated - self.paper

    @property
    def within(self) -> bool:
        """Whether the two are no further apart than the threshold."""
        return abs(self.error) <= self.threshold

    def to_json(self) -> dict[str, Any]:
        """The gain in full precision."""
        return {
            "model": self.model,
            "paper": self.paper,
            "simulated": self.simulated,
            "error": self.error,
            "threshold": self.threshold,
            "within": self.within,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published table beside ours, and the errors up to which it counts as reproduced."""

    title: str
    rows: Sequence[Row]
    mean_threshold: float
    max_threshold: float
    gains: Sequence[Gain] = ()

    @property
    def mean_abs_error(self) -> float:
        """Mean of |error| over the rows."""
        return math.fsum(abs(row.error) for row in self.rows) / len(self.rows)

    @property
    def max_abs_error(self) -> float:
        """Largest |error| of a row."""
        return max(abs(row.error) for row in self.rows)

    @property
    def misses(self) -> tuple[str, ...]:
        """What lies beyond a threshold, in words; empty when the table is reproduced."""
        found = []
        if self.mean_abs_error > self.mean_threshold:
            found.append(f"mean |error| {self.mean_abs_error:.2%} above {self.mean_threshold:.2%}")
        if self.max_abs_error > self.max_threshold:
            found.append(f"largest |error| {self.max_abs_error:.2%} above {self.max_threshold:.2%}")
        return tuple(found)

    @property
    def ok(self) -> bool:
        """Whether every error is within its threshold."""
        return not self.misses

    def to_json(self) -> dict[str, Any]:
        """Plain data in full precision."""
        return {
            "title": self.title,
            "rows": [row.to_json() for row in self.rows],
            "gains": [gain.to_json() for gain in self.gains],
            "mean_abs_error": self.mean_abs_error,
            "max_abs_error": self.max_abs_error,
            "mean_threshold": self.mean_threshold,
            "max_threshold": self.max_threshold,
            "misses": list(self.misses),
            "ok": self.ok,
        }
