"""Memory as measured beside memory as simulated: the table, its closing line, and as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from calibrate.memory.cases import HeldBytes

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


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """All cases on a device; `counted` says what was measured there."""

    counted: str
    rows: Sequence[Row]

    @property
    def mean_abs_error(self) -> float:
        """Mean of the rows' larger |error|."""
        return math.fsum(abs(row.worse_error) for row in self.rows) / len(self.rows)

    @property
    def max_abs_error(self) -> float:
        """Largest |error|."""
        return max(abs(row.worse_error) for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether every peak is within the threshold."""
        return self.max_abs_error <= THRESHOLD

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
            "threshold": THRESHOLD,
            "ok": self.ok,
        }


def memory_table(comparison: MemoryComparison) -> Table:
    """A row for each case; what is passing is what is held at the peak beside model states."""
    table = Table(title=f"Memory: {comparison.counted}", title_justify="left")
    for name in ("case", "recompute"):
        table.add_column(name)
    for head in ("measured\nGiB", "simulated\nGiB", "error\n%", "passing\n%"):
        table.add_column(head, justify="right")
    if any(row.reserved_bytes is not None for row in comparison.rows):
        table.add_column("reserved\nGiB", justify="right")
    for row in comparison.rows:
        table.add_row(row.name, row.recompute, *_numbers(row))
    return table


def _numbers(row: Row) -> list[str]:
    peaks = [_gib(held.peak) for held in (row.measured, row.simulated)]
    errors = [f"{100 * error:+.2f}" for error in (row.peak_error, row.passing_error)]
    reserved = [] if row.reserved_bytes is None else [_gib(row.reserved_bytes)]
    return peaks + errors + reserved


def memory_verdict(comparison: MemoryComparison) -> Text:
    """The closing line, one even where it is FAILED."""
    word, style = ("OK", "bold green") if comparison.ok else ("FAILED", "bold red")
    return Text(
        f"{word}: {len(comparison.rows)} cases, mean |error| {comparison.mean_abs_error:.2%}, "
        f"largest {comparison.max_abs_error:.2%} (at most {THRESHOLD:.1%})",
        style=style,
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.3f}"
