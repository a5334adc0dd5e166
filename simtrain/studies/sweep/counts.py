"""Counts of a sweep's points by status, and the best point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from simtrain.studies.objectives.registry import OBJECTIVES

Key = TypeVar("Key", str, int)

MORE_IS_BETTER = frozenset(
    {"mfu", "hfu", *(each.field for each in OBJECTIVES.values() if each.is_maximised)}
)
"""Objectives to maximise; all others are minimised."""


@dataclass(frozen=True, slots=True)
class BestPoint:
    """The best point of a sweep by its objective, which is a column of the results."""

    index: int
    objective: str
    value: float
    tokens_per_s: float
    iteration_time_s: float
    mfu: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of points by status.

    Args:
        ok: points that were simulated.
        does_not_fit: points that exceed the GPU memory.
        illegal: illegal points by the code of the first rule that they break.
        excluded: excluded points by the number of the first constraint that does not hold.
        best: the best simulated point.
    """

    ok: int = 0
    does_not_fit: int = 0
    illegal: Mapping[str, int] = field(default_factory=dict)
    excluded: Mapping[int, int] = field(default_factory=dict)
    best: BestPoint | None = None

    @property
    def num_rows(self) -> int:
        """Points with a row in the results: all but the excluded ones."""
        return self.ok + self.does_not_fit + sum(self.illegal.values())

    @property
    def num_points(self) -> int:
        """All points."""
        return self.num_rows + sum(self.excluded.values())

    def __add__(self, other: Counts) -> Counts:
        """Add two counts; of two equally good points, the earlier one is the best."""
        return Counts(
            self.ok + other.ok,
            self.does_not_fit + other.does_not_fit,
            _add_counts(self.illegal, other.illegal),
            _add_counts(self.excluded, other.excluded),
            better(self.best, other.best),
        )

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON, for the metadata of a part."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counts:
        """Read the output of `to_json`; JSON turns integer keys into text."""
        best = BestPoint(**data["best"]) if data["best"] else None
        excluded = {int(number): count for number, count in data["excluded"].items()}
        return cls(data["ok"], data["does_not_fit"], data["illegal"], excluded, best)


def better(point: BestPoint | None, other: BestPoint | None) -> BestPoint | None:
    """Return the better of two points, or the earlier one if they are equal."""
    points = [best for best in (point, other) if best]
    return min(points, key=_rank, default=None)


def _rank(best: BestPoint) -> tuple[float, int]:
    sign = -1 if best.objective in MORE_IS_BETTER else 1
    return sign * best.value, best.index


def _add_counts(counts: Mapping[Key, int], other: Mapping[Key, int]) -> dict[Key, int]:
    """Add two mappings of counts, key by key, in sorted order of keys."""
    return dict(sorted((Counter(counts) + Counter(other)).items()))
