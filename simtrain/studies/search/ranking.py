"""One queue of points, and the best of them so far.

A point is in the queue with a lower bound of its key: first the quick one, then, if its exact peak
fits, the close one. The first of the queue is always the point that can be the best of all others;
when its bound is close, it is simulated.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simtrain.studies.objectives.objective import Key

NUM_FASTER = 3
"""Points that are shown of those that are better than the best safe one, but may not fit."""


class Place(NamedTuple):
    """Key of a point, or a lower bound of it, and the point's number, which breaks ties."""

    key: Key
    number: int


class QueuedPoint(NamedTuple):
    """A point that is not simulated, at the place that its bound gives it."""

    place: Place
    is_close: bool
    """Whether its exact peak is known and its bound is the close one."""


@dataclass
class Ranking:
    """A ranking of points, as far as it is known.

    Args:
        top: its length.
        worst: no point behind this place is ranked; None for no limit.
        queue: heap of the points that may be ranked.
        best: places of the best simulated points, in order.
    """

    top: int
    worst: Place | None = None
    queue: list[QueuedPoint] = field(default_factory=list)
    best: list[Place] = field(default_factory=list)

    @property
    def unseen(self) -> list[Place]:
        """Points whose exact peak is not known, those with the least bounds first."""
        return sorted(place for place, is_close in self.queue if not is_close)

    @property
    def head(self) -> Place | None:
        """Smallest bound of all points that are not simulated."""
        return self.queue[0].place if self.queue else None

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

    def begin(self, places: Sequence[Place]) -> None:
        """Queue points that are only bounded quickly."""
        self.queue = [QueuedPoint(place, is_close=False) for place in places]
        heapq.heapify(self.queue)

    def wait(self, place: Place) -> None:
        """Queue a point that is bounded closely."""
        heapq.heappush(self.queue, QueuedPoint(place, is_close=True))

    def pop(self) -> QueuedPoint:
        """Remove and return the first point of the queue."""
        return heapq.heappop(self.queue)

    def end(self, top: int, worst: Place | None) -> None:
        """Limit the ranking to `top` points that are not behind `worst`."""
        self.top, self.worst = top, worst
        self.best = [place for place in self.best if worst is None or place < worst][:top]
