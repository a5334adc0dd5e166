"""What became of the points of a sweep, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

Key = TypeVar("Key", str, int)


MORE_IS_BETTER = frozenset({"tokens_per_s", "mfu", "hfu"})
"""Of what a point comes to; of everything else less is better."""


@dataclass(frozen=True, slots=True)
class Best:
    """The point with the best `value` of the sweep's `objective`, which is a reported column."""

    index: int
    objective: str
    value: float
    tokens_per_s: float
    iteration_time_s: float
    mfu: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Points that ran, that do not fit, and the others by what removed them.

    `illegal` is by the code of the first rule that a point breaks, `excluded` by the number of the
    first constraint that it does not satisfy.
    """

    ok: int = 0
    does_not_fit: int = 0
    illegal: Mapping[str, int] = field(default_factory=dict)
    excluded: Mapping[int, int] = field(default_factory=dict)
    best: Best | None = None

    @property
    def num_rows(self) -> int:
        """Points that have a row in the results."""
        return self.ok + self.does_not_fit + sum(self.illegal.values())

    @property
    def num_points(self) -> int:
        """All points, those without a row too."""
        return self.num_rows + sum(self.excluded.values())

    def __add__(self, other: Counts) -> Counts:
        """Both together; of equally good points the earlier one is the best."""
        return Counts(
            self.ok + other.ok,
            self.does_not_fit + other.does_not_fit,
            _summed(self.illegal, other.illegal),
            _summed(self.excluded, other.excluded),
            better(self.best, other.best),
        )

    def to_json(self) -> dict[str, Any]:
        """As the metadata of a part holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counts:
        """What `to_json` gave, though JSON has made text of its keys."""
        best = Best(**data["best"]) if data["best"] else None
        excluded = {int(number): count for number, count in data["excluded"].items()}
        return cls(data["ok"], data["does_not_fit"], data["illegal"], excluded, best)


def better(one: Best | None, other: Best | None) -> Best | None:
    """The better of two points, the earlier where they are equal."""
    found = [best for best in (one, other) if best]
    return min(found, key=_rank, default=None)


def _rank(best: Best) -> tuple[float, int]:
    sign = -1 if best.objective in MORE_IS_BETTER else 1
    return sign * best.value, best.index


def _summed(one: Mapping[Key, int], other: Mapping[Key, int]) -> dict[Key, int]:
    both = Counter(one)
    both.update(other)
    return dict(sorted(both.items()))
