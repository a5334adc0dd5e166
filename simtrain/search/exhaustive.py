"""The best points of a whole space, with no more simulated than certainty needs.

The search is best-first, in three stages:

1. Bounds from kernels and model states, found for all points in some 50 µs each, set the order.
2. A point that comes to the head of that order is looked at: its exact peak says whether it fits.
   If it does, a close bound of its time puts it into a queue.
3. A point that comes to the head of the queue is simulated, if no point that has not been looked
   at has a lower bound. When the head's bound is above the last of the best, these are the best.

Peaks come before close bounds, because the number of points that fit is part of the answer: no peak
is found in vain. Peaks that cannot change the ranking come last. To have an answer early, a point
that fits is simulated at once if its bound is below the best so far.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from simtrain.search.looker import Looker, Seen, Stop, Stopped, Tell
from simtrain.search.objective import Key
from simtrain.search.space import Point
from simtrain.search.words import in_short
from simtrain.search.workers import StopRequestedError, Workers
from simtrain.units import format_seconds

Place = tuple[Key, int]
"""The key of a point or a lower bound of it, and the point's number, which ranks equals."""

_MOST_SAVED_FIRST = {"full": 0, "selective": 1, "none": 2}
"""Strategies of recompute in the order of the memory that they need."""

_TELL_EVERY = 64
"""Points between two updates of the progress bar, unless there is a new best."""


def exhaustive(
    looker: Looker,
    workers: Workers,
    points: Sequence[Point],
    top: int,
    tell: Tell,
    stop: Stop,
    *,
    counts: bool = True,
) -> Seen:
    """Look at every point, and find the `top` best, exactly, unless it is stopped.

    The first point is looked at in any case: one that is likely to fit. Without `counts`, points
    that cannot be among the best are not looked at.
    """
    search = _Search(looker, workers, points, top, tell, stop)
    search.bound()
    search.begin()
    stopped: Stopped | None = None
    try:
        search.rank()
        if counts:
            search.count()
    except StopRequestedError as request:
        stopped = request.why
    if search.best or stopped:
        return search.seen(stopped)
    return Seen((), len(points), 0, 0, _nearest(looker, points), exact=True)


@dataclass
class _Search:
    """A search under way.

    Args:
        ordered: bounds of the points that may fit, the least first. Of those from `next` on it is
            not known whether they fit, but for `num_counted` that were only counted.
        queue: close bounds of points that fit and were not simulated, as a heap.
        best: keys of the best points that were simulated, the best first.
    """

    looker: Looker
    workers: Workers
    points: Sequence[Point]
    top: int
    tell: Tell
    stop: Stop
    ordered: list[Place] = field(default_factory=list)
    next: int = 0
    num_counted: int = 0
    num_fitting: int = 0
    num_bounded: int = 0
    num_simulated: int = 0
    queue: list[Place] = field(default_factory=list)
    best: list[Place] = field(default_factory=list)
    best_in_short: str = ""
    is_news: bool = False

    def bound(self) -> None:
        """Put the points that may fit in the order of their bounds."""
        for number, point in enumerate(self.points):
            if number % _TELL_EVERY == 0:
                self.tell("bounding", number, len(self.points), "")
            if (key := self.looker.least_key(point)) is not None:
                self.ordered.append((key, number))
        self.ordered.sort()

    def begin(self) -> None:
        """Look at a point that is likely to fit, so that there is an answer whenever it stops.

        Nothing is proved of this choice: the most recompute, the smallest microbatch and, of
        these, the smallest model states.
        """

        def savings(place: Place) -> tuple[int, int]:
            point = self.points[place[1]]
            return _MOST_SAVED_FIRST.get(point.recompute.strategy, 0), point.micro

        def states_bytes(place: Place) -> tuple[int, int]:
            scenario = self.looker.space.scenario(self.points[place[1]])
            return self.looker.bounds.peak_bytes(scenario), place[1]

        if not self.ordered:
            return
        most = min(map(savings, self.ordered))
        smallest = min((one for one in self.ordered if savings(one) == most), key=states_bytes)
        self.ordered.remove(smallest)
        if self.looker.fits(self.points[smallest[1]]):
            self.num_fitting += 1
            self.simulate(smallest[1])

    def rank(self) -> None:
        """Look at points and simulate them until no other can be among the best."""
        unseen = [self.points[number] for _, number in self.ordered]
        looks = self.workers.looks(unseen, self.stop, bounded=True)
        while (head := self.head()) is not None and not self.is_beaten(head):
            self.say("searching", self.next)
            if self.queue and head is self.queue[0]:
                heapq.heappop(self.queue)
                self.simulate(head[1])
                continue
            least_key = next(looks).least_key
            self.next += 1
            if least_key is None:
                continue
            self.num_fitting += 1
            self.num_bounded += 1
            if not self.best or (least_key, head[1]) < self.best[0]:
                self.simulate(head[1])
            else:
                heapq.heappush(self.queue, (least_key, head[1]))

    def count(self) -> None:
        """Find out how many of the other points fit."""
        # In the order of the space, in which neighbours share most of their work.
        others = [self.points[number] for number in sorted(place[1] for place in self.unseen)]
        for look in self.workers.looks(others, self.stop, bounded=False):
            self.num_counted += 1
            self.num_fitting += look.peak_bytes <= self.looker.limit_bytes
            self.say("counting what fits", self.next + self.num_counted)

    @property
    def unseen(self) -> list[Place]:
        """The points that had not been looked at when the ranking ended."""
        return self.ordered[self.next :]

    def head(self) -> Place | None:
        """The least bound of all points that were not simulated."""
        heads = [*self.ordered[self.next : self.next + 1], *self.queue[:1]]
        return min(heads, default=None)

    def is_beaten(self, place: Place) -> bool:
        """Whether no point with this bound can be among the best."""
        return len(self.best) == self.top and place > self.best[-1]

    def simulate(self, number: int) -> None:
        """Simulate a point that fits, and put it among the best if it belongs there."""
        point = self.points[number]
        self.num_simulated += 1
        insort(self.best, (self.looker.key(point), number))
        del self.best[self.top :]
        if self.best[0][1] == number:
            (found,) = self.looker.found([point])
            self.best_in_short = f"{format_seconds(found.run.iteration_time_s)}: {in_short(point)}"
            self.is_news = True

    def seen(self, stopped: Stopped | None) -> Seen:
        """What was seen until now."""
        num_seen = len(self.points) - len(self.unseen) + self.num_counted
        if not self.best:
            peaks_bytes = self.looker.peaks_bytes
            nearest = min(peaks_bytes, key=peaks_bytes.__getitem__, default=self.points[0])
            return Seen((), num_seen, 0, 0, nearest, stopped)
        head = self.head()
        bounds = [place[0][0] for place in (self.best[0], head) if place]
        return Seen(
            self.looker.found([self.points[number] for _, number in self.best]),
            num_seen,
            self.num_fitting,
            self.num_simulated,
            stopped=stopped,
            exact=head is None or self.is_beaten(head),
            bound=min(bounds),
            num_bounded=self.num_bounded,
            num_proved=sum(head is None or place <= head for place in self.best),
        )

    def say(self, phase: str, done: int) -> None:
        """Stop if that is asked for, and say how far the search is."""
        if why := self.stop():
            raise StopRequestedError(why)
        if done % _TELL_EVERY == 0 or self.is_news:
            self.tell(phase, done, len(self.ordered), self.best_in_short)
            self.is_news = False


def _nearest(looker: Looker, points: Sequence[Point]) -> Point:
    """The point with the smallest peak: only where a lower bound is below it need be looked."""
    bounded = sorted(
        (looker.bounds.peak_bytes(looker.space.scenario(point)), place)
        for place, point in enumerate(points)
    )
    nearest = points[bounded[0][1]]
    for bound, place in bounded:
        if bound >= looker.peak_bytes(nearest):
            break
        nearest = min(nearest, points[place], key=looker.peak_bytes)
    return nearest
