"""Finds the best points of a space exactly, and simulates only the points that a proof needs.

The search is best-first, in three stages:

1. Quick bounds from busy streams and memory (about 0.2 ms per point) order all points.
2. The first point of that order is assessed: its exact peak decides whether it fits. If it fits, a
   close bound of its time puts it into a queue.
3. The first point of the queue is simulated if its bound is below the bounds of all points that are
   not assessed yet. The search ends when this bound is above the last of the best.

Peaks are computed before close bounds, because the answer includes the number of points that fit.
Peaks that cannot change the ranking are computed last. A point that fits is simulated immediately
if its bound is below the best so far, to have an answer early.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.explorer import (
    Explorer,
    ProgressCallback,
    SearchOutcome,
    Stop,
    Stopped,
)
from simtrain.studies.search.space import Point
from simtrain.studies.search.words import in_short
from simtrain.studies.search.workers import StopRequestedError, Workers
from simtrain.units import format_seconds

Place = tuple[Key, int]
"""Key of a point, or a lower bound of it, and the point's number, which breaks ties."""

_MOST_SAVED_FIRST = {"full": 0, "selective": 1, "none": 2}
"""Recompute strategies in ascending order of memory."""

_TELL_EVERY = 64
"""Points between two updates of the progress bar; a new best updates it at once."""

_STRIDE = 61
"""Distance between points that are bounded one after another, while no point is known to fit: a
prime, to vary all coordinates.
"""


def search_all(
    explorer: Explorer,
    workers: Workers,
    points: Sequence[Point],
    top: int,
    on_progress: ProgressCallback,
    stop: Stop,
    *,
    simulated: Sequence[Point] = (),
    counts: bool = True,
) -> SearchOutcome:
    """Find the `top` best points, exactly unless the search is stopped.

    The search begins with points that fit and that the explorer has `simulated`. Without any, a
    first point that is likely to fit is evaluated in any case. Without `counts`, points that cannot
    be among the best are not evaluated.
    """
    search = _Search(explorer, workers, points, top, on_progress, stop)
    search.take(simulated)
    stopped = search.bound()
    if not simulated:
        search.begin()
    try:
        if stopped is None:
            search.rank()
            if counts:
                search.count()
    except StopRequestedError as request:
        stopped = request.why
    if search.best or stopped:
        return search.outcome(stopped)
    return SearchOutcome((), len(points), 0, 0, _nearest(explorer, points), exact=True)


@dataclass
class _Search:
    """State of a search.

    Args:
        num_unbounded: points without a bound, because the search was stopped.
        ordered: bounds of the points that may fit, in ascending order. Points from `next` on are
            not assessed for the ranking; `num_counted` of them have a known peak.
        queue: heap of close bounds of points that fit and are not simulated.
        best: keys of the best simulated points, in order.
        taken: numbers of the points that were simulated before the search.
    """

    explorer: Explorer
    workers: Workers
    points: Sequence[Point]
    top: int
    on_progress: ProgressCallback
    stop: Stop
    num_unbounded: int = 0
    ordered: list[Place] = field(default_factory=list)
    next: int = 0
    num_counted: int = 0
    num_fitting: int = 0
    num_bounded: int = 0
    num_simulated: int = 0
    queue: list[Place] = field(default_factory=list)
    best: list[Place] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    best_in_short: str = ""
    is_news: bool = False

    def take(self, simulated: Sequence[Point]) -> None:
        """Begin with points that fit and were simulated before."""
        if simulated:
            numbers = {point: number for number, point in enumerate(self.points)}
            self.taken = {numbers[point] for point in simulated}
            self.num_fitting = len(self.taken)
            for number in sorted(self.taken):
                self.simulate(number)

    def bound(self) -> Stopped | None:
        """Order the points that may fit by their bounds.

        Returns:
            Why the search stopped before all points had bounds; it does not before one may fit.
        """
        stopped: Stopped | None = None
        # Neighbours share most of their work. Without an answer yet, the first points come from all
        # parts of the space, so that one of them is likely to fit.
        stride = 1 if self.taken else _STRIDE
        numbers = (
            number
            for first in range(stride)
            for number in range(first, len(self.points), stride)
            if number not in self.taken
        )
        # A larger microbatch needs no less memory: what a smaller one refuses is not looked at.
        refused = set[Point]()
        for done, number in enumerate(sorted(numbers, key=lambda at: self.points[at].micro)):
            if done % _TELL_EVERY == 0:
                self.on_progress("bounding", done, len(self.points), self.best_in_short)
                if (self.ordered or self.best) and (stopped := self.stop()):
                    self.num_unbounded = len(self.points) - len(self.taken) - done
                    break
            point = self.points[number]
            alike = point._replace(micro=1)
            if alike in refused:
                continue
            if (key := self.explorer.least_key(point)) is not None:
                self.ordered.append((key, number))
            else:
                refused.add(alike)
        self.ordered.sort()
        return stopped

    def begin(self) -> None:
        """Evaluate a point that is likely to fit, to have an answer if the search is stopped.

        The choice is a heuristic: most recompute, then the smallest microbatch, then the smallest
        model states.
        """

        def savings(place: Place) -> tuple[int, int]:
            point = self.points[place[1]]
            return _MOST_SAVED_FIRST.get(point.recompute.strategy, 0), point.micro

        def states_bytes(place: Place) -> tuple[int, int]:
            return self.explorer.least_peak_bytes(self.points[place[1]]), place[1]

        if not self.ordered:
            return
        most = min(map(savings, self.ordered))
        smallest = min(
            (place for place in self.ordered if savings(place) == most), key=states_bytes
        )
        self.ordered.remove(smallest)
        if self.explorer.fits(self.points[smallest[1]]):
            self.num_fitting += 1
            self.simulate(smallest[1])

    def rank(self) -> None:
        """Assess and simulate points until no other point can be among the best."""
        unseen = [self.points[number] for _, number in self.ordered]
        assessments = self.workers.assessments(unseen, self.stop, bounded=True)
        while (head := self.head()) is not None and not self.is_beaten(head):
            self.report("searching", self.next)
            if self.queue and head is self.queue[0]:
                heapq.heappop(self.queue)
                self.simulate(head[1])
                continue
            least_key = next(assessments).least_key
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
        """Count how many of the other points fit.

        Of points that differ only in their microbatch, those up to a size fit: bisection finds it.
        """
        groups: dict[Point, list[Point]] = {}
        # Neighbours in the order of the space share most of their work.
        for number in sorted(place[1] for place in self.unseen):
            point = self.points[number]
            groups.setdefault(point._replace(micro=1), []).append(point)
        sizes = [sorted(group, key=attrgetter("micro")) for group in groups.values()]
        spans = [(0, len(group)) for group in sizes]
        while open_spans := [at for at, (low, high) in enumerate(spans) if low < high]:
            middles = [sum(spans[at]) // 2 for at in open_spans]
            points = [sizes[at][middle] for at, middle in zip(open_spans, middles, strict=True)]
            assessments = self.workers.assessments(points, self.stop, bounded=False)
            for at, middle, assessment in zip(open_spans, middles, assessments, strict=True):
                low, high = spans[at]
                if assessment.peak_bytes <= self.explorer.limit_bytes:
                    spans[at] = middle + 1, high
                    self.num_fitting += middle + 1 - low
                else:
                    spans[at] = low, middle
                self.num_counted += high - low - (spans[at][1] - spans[at][0])
                self.report("counting what fits", self.next + self.num_counted)

    @property
    def unseen(self) -> list[Place]:
        """Points that were not assessed when the ranking ended."""
        return self.ordered[self.next :]

    def head(self) -> Place | None:
        """Smallest bound of all points that are not simulated."""
        heads = [*self.ordered[self.next : self.next + 1], *self.queue[:1]]
        return min(heads, default=None)

    def is_beaten(self, place: Place) -> bool:
        """Whether a point with this bound cannot be among the best."""
        return len(self.best) == self.top and place > self.best[-1]

    def simulate(self, number: int) -> None:
        """Simulate a point that fits and insert it into the best."""
        point = self.points[number]
        self.num_simulated += 1
        insort(self.best, (self.explorer.key(point), number))
        del self.best[self.top :]
        if self.best[0][1] == number:
            (candidate,) = self.explorer.candidates([point])
            self.best_in_short = (
                f"{format_seconds(candidate.run.iteration_time_s)}: {in_short(point)}"
            )
            self.is_news = True

    def outcome(self, stopped: Stopped | None) -> SearchOutcome:
        """The best points and the counts until now."""
        num_unseen = self.num_unbounded + len(self.unseen) - self.num_counted
        num_seen = len(self.points) - num_unseen
        if not self.best:
            peaks_bytes = self.explorer.peaks_bytes
            nearest = min(peaks_bytes, key=peaks_bytes.__getitem__, default=self.points[0])
            return SearchOutcome((), num_seen, 0, 0, nearest, stopped)
        head = self.head()
        bounds = [place[0][0] for place in (self.best[0], head) if place]
        has_bounds = not self.num_unbounded
        return SearchOutcome(
            self.explorer.candidates([self.points[number] for _, number in self.best]),
            num_seen,
            self.num_fitting,
            self.num_simulated,
            stopped=stopped,
            exact=has_bounds and (head is None or self.is_beaten(head)),
            bound=min(bounds) if has_bounds else None,
            num_bounded=self.num_bounded,
            num_proved=sum(head is None or place <= head for place in self.best) * has_bounds,
        )

    def report(self, phase: str, done: int) -> None:
        """Report progress; raise StopRequestedError if the search must stop."""
        if why := self.stop():
            raise StopRequestedError(why)
        if done % _TELL_EVERY == 0 or self.is_news:
            self.on_progress(phase, done, len(self.ordered), self.best_in_short)
            self.is_news = False


def _nearest(explorer: Explorer, points: Sequence[Point]) -> Point:
    """Find the point with the smallest peak; bounds exclude most points."""
    bounded = sorted(
        (explorer.least_peak_bytes(point), place) for place, point in enumerate(points)
    )
    nearest = points[bounded[0][1]]
    for bound, place in bounded:
        if bound >= explorer.peak_bytes(nearest):
            break
        nearest = min(nearest, points[place], key=explorer.peak_bytes)
    return nearest
