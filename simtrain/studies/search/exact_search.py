"""Finds the best points of a space exactly, and simulates only the points that a proof needs.

All points wait in a queue with a lower bound of their key (`best_first`). The bound gets closer in
four steps: that of the most common layers alone, for points that differ in ZeRO stage and recompute
together; that of busy streams and least memory; that of simulated passes and the exact peak; and
the simulated key. While the first bounds are computed, each group whose bound is before the best
simulated point is searched at once, as far as it may be better: so there is an early answer, which
soon excludes most groups. Then the search takes from the queue:

1. the best points whose peak is safe; other points are moved to a second queue;
2. from the second queue, the points that are better than the best safe one: they fit, but may not
   fit in reality;
3. the best points that need less memory than the best.

Then it counts how many of the other points fit, which changes none of these.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice

from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.best_first import QueuePlace, best_first
from simtrain.studies.search.explorer import (
    NUM_FASTER,
    Candidate,
    Explorer,
    ProgressCallback,
    SearchOutcome,
)
from simtrain.studies.search.layout_words import in_short
from simtrain.studies.search.search_end import End, Stop, StopRequestedError, check
from simtrain.studies.search.space import COORDINATES, Point
from simtrain.studies.search.workers import Workers
from simtrain.units import format_seconds

_NUM_SHARED = COORDINATES.index("zero_stage")
"""Number of first coordinates that the points of a group share; they differ in the others."""

_TELL_EVERY = 64
"""Steps between two updates of the progress bar; a new best updates it at once."""

_LESS_MEMORY = (0.9, 0.75, 0.5, 0.25)
"""Peaks of layouts with less memory, as shares of the peak of the best."""
_NOTICEABLE = 0.02
"""Least difference between the peaks of a front, as a share of the limit."""

_MOST_COUNTED = 10_000
"""Legal points of a space that is not large: a search counts how many of them fit. In a larger one,
that takes half of its time."""


def search_all(
    explorer: Explorer,
    workers: Workers,
    points: Sequence[Point],
    top: int,
    on_progress: ProgressCallback,
    stop: Stop,
    *,
    only_best: bool = False,
    with_front: bool = False,
) -> SearchOutcome:
    """Find the `top` best points, exactly unless the search is stopped or times are drawn.

    Bounds of drawn times hold with probability only. The search is not stopped before it has
    simulated a point that fits. With `only_best`, points that are better than the best safe one,
    but may not fit, are not searched, and the points that fit are not counted. `with_front` also
    searches the best points that need less memory.
    """
    search = _Search(explorer, workers, points, top, on_progress, stop)
    end = explorer.complete
    try:
        search.bound()
        search.rank(finds_faster=not only_best)
        if with_front and search.best and not explorer.objective.ranks_memory:
            search.find_less_memory()
        if not only_best and len(points) <= _MOST_COUNTED:
            search.count()
    except StopRequestedError as request:
        end = request.why
    if search.best:
        return search.outcome(end, proves=explorer.complete.is_proof)
    return SearchOutcome((), len(points), 0, 0, end, _nearest(explorer, points), exact=True)


@dataclass
class _Search:
    """State of a search.

    Args:
        safe: queue of the points whose peak may be safe.
        risky: queue of the other points that may fit.
        has_bounds: whether every point has a bound.
        fits: whether a point fits, by its number, if that is known.
        bounded: numbers of the points that fit and have a close bound.
        simulated: places of the points that fit and were simulated, by their number.
    """

    explorer: Explorer
    workers: Workers
    points: Sequence[Point]
    top: int
    on_progress: ProgressCallback
    stop: Stop
    safe: list[QueuePlace] = field(default_factory=list)
    risky: list[QueuePlace] = field(default_factory=list)
    has_bounds: bool = False
    fits: dict[int, bool] = field(default_factory=dict)
    bounded: set[int] = field(default_factory=set)
    simulated: dict[int, QueuePlace] = field(default_factory=dict)
    num_steps: int = 0
    best_in_short: str = ""

    def __post_init__(self) -> None:
        """Group the points that share a bound, and set the steps from it to the exact key."""
        grouped = groupby(range(len(self.points)), lambda number: _group(self.points[number]))
        groups = [[*numbers] for _, numbers in grouped]
        self.groups = {numbers[0]: numbers for numbers in groups}
        self.closer = self.expand, self.bound_closely, self.simulate

    # -------------------------------------------------------------------- the steps

    def expand(self, first: int) -> list[QueuePlace]:
        """Return the points of a group with bounds from busy streams and least memory."""
        self.report("searching")
        return [
            place
            for number in self.groups[first]
            for place in self.place(number, self.explorer.least_key(self.points[number]), 1)
        ]

    def bound_closely(self, number: int) -> list[QueuePlace]:
        """Return a point with a bound from simulated passes and the exact peak."""
        self.report("searching")
        key = self.explorer.close_key(self.points[number])
        if key is not None:
            self.fits[number] = True
            self.bounded.add(number)
        return self.place(number, key, 2)

    def simulate(self, number: int) -> list[QueuePlace]:
        """Return a point that fits with its exact key."""
        self.report("searching")
        point = self.points[number]
        if not self.explorer.runs(point):
            return self.place(number, None, 3)
        (place,) = self.place(number, self.explorer.key(point), 3)
        self.fits[number] = True
        self.simulated[number] = place
        if self.best[0].number == number:
            (candidate,) = self.candidates(self.best[:1])
            time = format_seconds(candidate.iteration_time_s)
            self.best_in_short = f"{time}: {in_short(point)}"
            self.num_steps = 0  # tells it at once
        return [place]

    def place(self, number: int, key: Key | None, closeness: int) -> list[QueuePlace]:
        """Return the place of a point with a key; none without a key, as it does not fit."""
        if key is None:
            self.fits[number] = False
            return []
        return [QueuePlace(key, number, closeness)]

    # -------------------------------------------------------------------- the phases

    def bound(self) -> None:
        """Bound all groups; search those that may have a better safe point than the best so far.

        The other groups are queued. An early answer is the best point of the first groups.
        """
        firsts = [*self.groups]
        groups = [[self.points[number] for number in self.groups[first]] for first in firsts]
        for done, (place, key) in enumerate(self.workers.group_keys(groups, self.must_stop)):
            first = firsts[place]
            if key is None:
                self.fits.update(dict.fromkeys(self.groups[first], False))
            else:
                self.search_group(QueuePlace(key, first))
            if done % _TELL_EVERY == 0:
                self.on_progress("bounding", done, len(groups), self.best_in_short)
        self.has_bounds = True

    def search_group(self, group: QueuePlace) -> None:
        """Simulate the best safe point of a group, if it is better than the best so far.

        While no point is simulated, the best risky point is simulated if no safe one fits. All
        points of the group are queued.
        """
        queues: dict[bool, list[QueuePlace]] = {True: [], False: []}

        def put(place: QueuePlace) -> None:
            heapq.heappush(queues[self.is_safe(place)], place)

        put(group)
        last = self.best[0] if self.simulated and self.is_safe(self.best[0]) else None
        best = [*islice(best_first(queues[True], self.closer, put, last), 1)]
        if not self.simulated:
            best += islice(best_first(queues[False], self.closer, put), 1)
        _exhaust(map(self.queue, (*best, *queues[True], *queues[False])))

    def must_stop(self) -> End | None:
        """Return why to stop, but None before a point that fits is simulated."""
        return self.stop() if self.simulated else None

    def rank(self, *, finds_faster: bool) -> None:
        """Find the best safe points and the better risky ones, or if none is safe, all the best."""
        safe = [*islice(best_first(self.safe, self.closer, self.queue), self.top)]
        if not safe:
            _exhaust(islice(best_first(self.risky, self.closer, self.queue), self.top))
        elif finds_faster:
            faster = best_first(self.risky, self.closer, self.queue, safe[0])
            _exhaust(islice(faster, NUM_FASTER))

    def find_less_memory(self) -> None:
        """Find the best point within each of some shares of the peak of the best.

        In a large space, points that wait with their quickest bound are left out.
        """
        most_bytes = self.peak_of(self.best[0])
        # To bound all points of a large space closer would be most of the search's time.
        is_large = len(self.points) > _MOST_COUNTED
        queue = [
            place
            for place in self.answer_queue
            if place.number not in self.simulated and (place.closeness or not is_large)
        ]
        queue += self.simulated.values()
        for share in _LESS_MEMORY:
            queue = self.best_within(share * most_bytes, queue)

    def best_within(self, most_bytes: float, places: Iterable[QueuePlace]) -> list[QueuePlace]:
        """Return the places with at most such a peak; that of the best of them is exact."""
        queue: list[QueuePlace] = []

        def put(place: QueuePlace) -> None:
            if self.peak_of(place) <= most_bytes:
                heapq.heappush(queue, place)

        _exhaust(map(put, places))
        return [*islice(best_first(queue, self.closer, put), 1), *queue]

    def count(self) -> None:
        """Find how many of the other points fit.

        Of points that differ only in their microbatch, those up to a size fit: bisection finds it.
        """
        groups: dict[Point, list[int]] = {}
        for number, point in enumerate(self.points):
            if number not in self.fits:
                groups.setdefault(point._replace(micro=1), []).append(number)
        for group in groups.values():
            group.sort(key=lambda number: self.points[number].micro)
            num_fitting = bisect_left(group, True, key=self.is_too_large)
            for place, number in enumerate(group):
                self.fits[number] = place < num_fitting

    def is_too_large(self, number: int) -> bool:
        """Whether a point does not fit."""
        self.report("counting what fits")
        return not self.explorer.fits(self.points[number])

    # -------------------------------------------------------------------- the state

    def queue(self, place: QueuePlace) -> None:
        """Queue a point with a key, or with a bound of it."""
        heapq.heappush(self.safe if self.is_safe(place) else self.risky, place)

    def peak_of(self, place: QueuePlace) -> float:
        """Return the peak of a point, or the bound of it in a bound of its key."""
        return self.explorer.objective.peak_of(place.key)

    def is_safe(self, place: QueuePlace) -> bool:
        """Whether the peak of a point is safe, or may be, if the key is a bound."""
        return self.peak_of(place) <= self.explorer.safe_bytes

    @property
    def best(self) -> list[QueuePlace]:
        """The best simulated points: those with a safe peak, or all if there are none."""
        places = sorted(self.simulated.values())
        return ([*filter(self.is_safe, places)] or places)[: self.top]

    @property
    def faster(self) -> list[QueuePlace]:
        """The simulated points before the best safe one, which fit, but may not fit in reality."""
        if not self.best or not self.is_safe(self.best[0]):
            return []
        return sorted(place for place in self.simulated.values() if place < self.best[0])[
            :NUM_FASTER
        ]

    @property
    def answer_queue(self) -> list[QueuePlace]:
        """Points that may be among the best. If some safe point fits, no risky one can be."""
        is_safe = self.best and self.is_safe(self.best[0])
        return self.safe if is_safe else [*self.safe, *self.risky]

    def outcome(self, end: End, *, proves: bool) -> SearchOutcome:
        """Return the best points, the counts, and what is proved, until now.

        If times are drawn, nothing is: `proves` is false.
        """
        best, faster = self.best, self.faster
        num_seen, num_fitting = len(self.fits), sum(self.fits.values())
        # A safe point goes before all risky ones: nothing is proved of these while one may fit.
        has_proof = self.has_bounds and proves
        is_answer = has_proof and (self.is_safe(best[0]) or not self.safe)
        first = min(self.answer_queue, default=best[-1])
        num_proved = sum(place <= first for place in best) * is_answer
        is_complete = len(best) == self.top or not self.answer_queue
        fastest = [*faster, *best][0]
        return SearchOutcome(
            self.candidates(best),
            num_seen,
            num_fitting,
            len(self.simulated),
            end,
            exact=is_answer and is_complete and num_proved == len(best),
            bound=min(best[0], first).key[0] if has_proof else None,
            num_bounded=len(self.bounded),
            num_proved=num_proved,
            front=self.front(),
            faster=self.candidates(faster),
            faster_exact=has_proof and fastest <= min(self.safe + self.risky, default=fastest),
        )

    def front(self) -> tuple[Candidate, ...]:
        """Return simulated points, each of which needs noticeably less memory than all before."""
        if self.explorer.objective.ranks_memory:
            return ()
        most_bytes, front = self.peak_of(self.best[0]), list[QueuePlace]()
        for place in sorted(self.simulated.values()):
            if self.peak_of(place) <= most_bytes:
                front.append(place)
                most_bytes = self.peak_of(place) - _NOTICEABLE * self.explorer.limit_bytes
        return self.candidates(front)

    def candidates(self, places: Sequence[QueuePlace]) -> tuple[Candidate, ...]:
        """Return points with their evaluations."""
        return self.explorer.candidates([self.points[place.number] for place in places])

    def report(self, phase: str) -> None:
        """Report progress; raise StopRequestedError if the search must stop."""
        check(self.must_stop)
        # While groups get their bounds, progress is the number of these.
        if self.has_bounds and self.num_steps % _TELL_EVERY == 0:
            self.on_progress(phase, len(self.fits), len(self.points), self.best_in_short)
        self.num_steps += 1


def _nearest(explorer: Explorer, points: Sequence[Point]) -> Point:
    """Find the point with the smallest peak: bounds of increasing closeness exclude most points."""

    def closer(closeness: int, number: int) -> list[QueuePlace]:
        return [QueuePlace((peaks[closeness](points[number]), 0.0), number, closeness)]

    peaks = explorer.states_bytes, explorer.least_peak_bytes, explorer.peak_bytes
    queue = [place for number in range(len(points)) for place in closer(0, number)]
    heapq.heapify(queue)
    steps = [partial(closer, 1), partial(closer, 2)]
    return points[next(best_first(queue, steps, partial(heapq.heappush, queue))).number]


def _group(point: Point) -> tuple[object, ...]:
    """Return what points with a common first bound have in common."""
    return point[:_NUM_SHARED], point.settings


def _exhaust(results: Iterable[object]) -> None:
    for _ in results:
        pass
