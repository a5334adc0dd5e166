"""Memory as measured beside memory as simulated: the table, its closing line, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from calibrate.memory.cases import HeldBytes
from calibrate.tables import comparison_table
from simtrain.comparison import Comparison, ErrorStatistics, Pair
from simtrain.pages.tables import verdict

GIB = 2**30
THRESHOLD = 0.03
"""Largest |error| of a peak, and of the part of it that comes and goes."""


@dataclass(frozen=True, slots=True)
class Row:
    """A case as measured and as simulated; `reserved_bytes` is what CUDA's allocator had taken."""

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
        """The same of what is held at the peak beside model states."""
        return self.simulated.passing / self.measured.passing - 1

    @property
    def worse_error(self) -> float:
        """The larger of the two."""
        return max(self.peak_error, self.passing_error, key=abs)


@dataclass(frozen=True)
class MemoryComparison(ErrorStatistics):
    """All cases on a device; `counted` names the way of measuring there."""

    counted: str
    rows: Sequence[Row]
    mean_threshold, max_threshold = None, THRESHOLD

    @property
    def errors(self) -> list[float]:
        """The larger error of each case."""
        return [row.worse_error for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "counted": self.counted,
            "cases": [
                {
                    "name": row.name,
                    "recompute": row.recompute,
                    "measured_bytes": asdict(row.measured),
                    "simulated_bytes": asdict(row.simulated),
                    "reserved_bytes": row.reserved_bytes,
                    "peak_error": row.peak_error,
                    "passing_error": row.passing_error,
                }
                for row in self.rows
            ],
            "mean_abs_error": self.mean_abs_error,
            "max_abs_error": self.max_abs_error,
            "threshold": self.max_threshold,
            "ok": self.ok,
        }


def memory_table(comparison: MemoryComparison) -> Table:
    """A row for each case; "passing" is the error of the peak less the model states."""
    rows = comparison.rows
    peaks = Comparison(
        "peak",
        "bytes",
        [Pair((row.name, row.recompute), row.measured.peak, row.simulated.peak) for row in rows],
    )
    further = [(">passing\n%", [f"{100 * row.passing_error:+.2f}" for row in rows])]
    if any(row.reserved_bytes is not None for row in rows):
        reserved = [f"{(row.reserved_bytes or 0) / GIB:.4g}" for row in rows]
        further.append((">reserved\nGiB", reserved))
    title = f"Memory: {comparison.counted}"
    return comparison_table(
        title, peaks, "case", "recompute", predicted="simulated", further=further
    )


def memory_verdict(comparison: MemoryComparison) -> Text:
    """The closing line."""
    return verdict(
        comparison.ok,
        f"{len(comparison.rows)} cases, mean |error| {comparison.mean_abs_error:.2%}, "
        f"largest {comparison.max_abs_error:.2%} (at most {comparison.max_threshold:.1%})",
    )
