"""The best of some points so far, and the bounds of those that may become one of them."""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field

from simtrain.studies.objectives.objective import Key

Place = tuple[Key, int]
"""Key of a point, or a lower bound of it, and the point's number, which breaks ties."""

NUM_FASTER = 3
"""Points that are shown of those that are better than the best safe one, but may not fit."""


@dataclass
class Ranking:
    """A ranking of points, as far as it is known.

    Args:
        top: its length.
        worst: no point behind this place is ranked; None for no limit.
        ordered: bounds of points that may be ranked, in ascending order. Points from `next` on are
            not assessed.
        queue: heap of close bounds of points that are assessed and not simulated.
        best: keys of the best simulated points, in order.
    """

    top: int
    worst: Place | None = None
    ordered: list[Place] = field(default_factory=list)
    next: int = 0
    queue: list[Place] = field(default_factory=list)
    best: list[Place] = field(default_factory=list)

    @property
    def unseen(self) -> list[Place]:
        """Points that are not assessed."""
        return self.ordered[self.next :]

    @property
    def head(self) -> Place | None:
        """Smallest bound of all points that are not simulated."""
        return min([*self.ordered[self.next : self.next + 1], *self.queue[:1]], default=None)

    @property
    def is_full(self) -> bool:
        """Whether as many points are simulated as are ranked."""
        return len(self.best) >= self.top

    @property
    def is_final(self) -> bool:
        """Whether no other point can be ranked."""
        return self.head is None or self.is_beaten(self.head)

    def is_beaten(self, place: Place) -> bool:
        """Whether a point with this bound cannot be ranked."""
        is_behind = self.worst is not None and place > self.worst
        return is_behind or (self.is_full and place > self.best[-1])

    def leads(self, place: Place) -> bool:
        """Whether a point with this bound may become the best."""
        return not self.is_beaten(place) and (not self.best or place < self.best[0])

    def insert(self, place: Place) -> None:
        """Insert a simulated point."""
        insort(self.best, place)
        del self.best[self.top :]

    def wait(self, place: Place) -> None:
        """Queue an assessed point."""
        heapq.heappush(self.queue, place)

    def end(self, top: int, worst: Place | None) -> None:
        """Limit the ranking to `top` points that are not behind `worst`."""
        self.top, self.worst = top, worst
        self.best = [place for place in self.best if worst is None or place < worst][:top]
