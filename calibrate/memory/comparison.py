"""Measured and simulated memory: the page of a comparison, and its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group

from calibrate.memory.cases import HeldBytes
from calibrate.tables import comparison_table
from simtrain.comparison import Comparison, ErrorStatistics, Pair
from simtrain.pages.tables import verdict

THRESHOLD = 0.03
"""Largest |error| of a peak, and of the part of it that comes and goes."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured and simulated case; `reserved_bytes` is the memory that CUDA's allocator took."""

    name: str
    recompute: str
    measured: HeldBytes
    simulated: HeldBytes
    reserved_bytes: int | None

    @property
    def peak_error(self) -> float:
        """Relative error of the peak: simulated / measured - 1."""
        return self.simulated.peak / self.measured.peak - 1

    @property
    def passing_error(self) -> float:
        """Relative error of the bytes that the peak holds besides model states."""
        return self.simulated.passing / self.measured.passing - 1

    def to_json(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "name": self.name,
            "recompute": self.recompute,
            "measured_bytes": asdict(self.measured),
            "simulated_bytes": asdict(self.simulated),
            "reserved_bytes": self.reserved_bytes,
            "peak_error": self.peak_error,
            "passing_error": self.passing_error,
        }


@dataclass(frozen=True)
class MemoryComparison(ErrorStatistics):
    """All cases on a device; `counted` names the way of measuring there."""

    counted: str
    rows: Sequence[Row]
    mean_threshold, max_threshold = None, THRESHOLD

    @property
    def errors(self) -> list[float]:
        """The larger error of each case."""
        return [max(row.peak_error, row.passing_error, key=abs) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "counted": self.counted,
            "cases": [row.to_json() for row in self.rows],
            "mean_abs_error": self.mean_abs_error,
            "max_abs_error": self.max_abs_error,
            "threshold": self.max_threshold,
            "ok": self.ok,
        }

    def page(self) -> Group:
        """A row for each case, and the verdict; "passing" is the error of the peak less states."""
        rows, labels = self.rows, ("case", "recompute")
        pairs = [Pair((r.name, r.recompute), r.measured.peak, r.simulated.peak) for r in rows]
        further = [(">passing\n%", [f"{100 * row.passing_error:+.2f}" for row in rows])]
        if any(row.reserved_bytes is not None for row in rows):
            reserved = [f"{(row.reserved_bytes or 0) / 2**30:.4g}" for row in rows]
            further.append((">reserved\nGiB", reserved))
        title, peaks = f"Memory: {self.counted}", Comparison("peak", "bytes", pairs)
        table = comparison_table(title, peaks, *labels, predicted="simulated", further=further)
        errors = f"mean |error| {self.mean_abs_error:.2%}, largest {self.max_abs_error:.2%}"
        words = f"{len(rows)} cases, {errors} (at most {self.max_threshold:.1%})"
        return Group(table, verdict(self.ok, words))
