"""Finds the best points of a space exactly, and simulates only the points that a proof needs.

All points wait in a queue with a lower bound of their key (`best_first`). The bound gets closer in
four steps: that of the most common layers alone; that of busy streams and least memory; that of
simulated passes and the exact peak; and the simulated key. The search takes from the queue:

1. the best points whose peak is safe; other points are moved to a second queue;
2. from the second queue, the points that are better than the best safe one: they fit, but may not
   fit in reality;
3. the best points that need less memory than the best.

Then it counts how many of the other points fit, which changes none of these.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.best_first import Place, best_first
from simtrain.studies.search.explorer import (
    NUM_FASTER,
    Candidate,
    Explorer,
    ProgressCallback,
    SearchOutcome,
)
from simtrain.studies.search.layout_words import in_short
from simtrain.studies.search.search_end import End, Stop, StopRequestedError, check
from simtrain.studies.search.space import Point
from simtrain.studies.search.workers import Workers
from simtrain.units import format_seconds

_MOST_SAVED_FIRST = {"full": 0, "selective": 1, "none": 2}
"""Recompute strategies in ascending order of memory."""

_TELL_EVERY = 64
"""Steps between two updates of the progress bar; a new best updates it at once."""

_LESS_MEMORY = (0.75, 0.5, 0.25)
"""Peaks of layouts with less memory, as shares of the peak of the best."""
_NOTICEABLE = 0.02
"""Least difference between the peaks of a front, as a share of the limit."""

_MOST_COUNTED = 10_000
"""Legal points of a space that is not large: a search counts how many of them fit. In a larger one,
that takes half of its time."""


# Ten parameters: the last four say what the search does besides the ranking, and its one caller in
# `run.py` has them as fields of the request.
def search_all(
    explorer: Explorer,
    workers: Workers,
    points: Sequence[Point],
    top: int,
    on_progress: ProgressCallback,
    stop: Stop,
    *,
    simulated: Sequence[Point] = (),
    only_best: bool = False,
    with_front: bool = False,
    cut_short: End | None = None,
) -> SearchOutcome:
    """Find the `top` best points, exactly unless the search is stopped.

    The search begins with points that fit and that the explorer has `simulated`. Without any, a
    point that is likely to fit is evaluated even if the search is stopped. With `only_best`, points
    that are better than the best safe one, but may not fit, are not searched, and the points that
    fit are not counted. `with_front` also searches the best points that need less memory. If the
    list of points was `cut_short`, only the simulated points are ranked, and nothing is proved.
    """
    search = _Search(explorer, workers, points, top, on_progress, stop)
    search.take(simulated)
    if cut_short:
        return search.outcome(cut_short)
    end = End.FOUND_ALL
    try:
        search.bound()
        search.try_smallest()
        search.rank(finds_faster=not only_best)
        if with_front and search.best and not explorer.objective.ranks_memory:
            search.find_less_memory()
        if not only_best and len(points) <= _MOST_COUNTED:
            search.count()
    except StopRequestedError as request:
        end = request.why
        search.try_smallest()
    if search.best or end is not End.FOUND_ALL:
        return search.outcome(end)
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
    safe: list[Place] = field(default_factory=list)
    risky: list[Place] = field(default_factory=list)
    has_bounds: bool = False
    fits: dict[int, bool] = field(default_factory=dict)
    bounded: set[int] = field(default_factory=set)
    simulated: dict[int, Place] = field(default_factory=dict)
    num_steps: int = 0
    best_in_short: str = ""

    def __post_init__(self) -> None:
        """Set the steps from the quickest bound of a key to the exact key."""
        steps = self.least_key, self.close_key, self.exact_key
        self.closer = [partial(self.step, step) for step in steps]

    # -------------------------------------------------------------------- the steps

    def step(self, next_key: Callable[[int], Key | None], number: int) -> Key | None:
        """Return the next key of a point; None if it does not fit. Stops the search if it must."""
        self.report("searching")
        key = next_key(number)
        if key is None:
            self.fits[number] = False
        return key

    def least_key(self, number: int) -> Key | None:
        """Return a bound from busy streams and least memory."""
        return self.explorer.least_key(self.points[number])

    def close_key(self, number: int) -> Key | None:
        """Return a bound from simulated passes and the exact peak."""
        key = self.explorer.close_key(self.points[number])
        if key is not None:
            self.fits[number] = True
            self.bounded.add(number)
        return key

    def exact_key(self, number: int) -> Key | None:
        """Simulate a point that fits."""
        point = self.points[number]
        if not self.explorer.runs(point):
            return None
        key = self.explorer.key(point)
        self.fits[number] = True
        self.simulated[number] = Place(key, number, len(self.closer))
        if self.best[0].number == number:
            (candidate,) = self.candidates(self.best[:1])
            time = format_seconds(candidate.iteration_time_s)
            self.best_in_short = f"{time}: {in_short(point)}"
            self.num_steps = 0  # tells it at once
        return key

    # -------------------------------------------------------------------- the phases

    def take(self, simulated: Sequence[Point]) -> None:
        """Begin with points that fit and were simulated before."""
        numbers = {point: number for number, point in enumerate(self.points)} if simulated else {}
        for number in sorted(numbers[point] for point in simulated):
            self.exact_key(number)
            self.queue(self.simulated[number])

    def bound(self) -> None:
        """Queue all other points with their quickest bounds; do not stop before one may fit."""
        numbers = [number for number in range(len(self.points)) if number not in self.simulated]
        points = [self.points[number] for number in numbers]
        # Points behind those that were simulated before are not likely to need a closer bound. Of
        # the others it is computed here, where neighbours share most of their work.
        safe = [*filter(self.is_safe, self.best)]
        horizon = safe[-1].key if len(safe) == self.top else None
        keys = self.workers.quick_keys(points, horizon, self.stop_if_any)
        for done, (place, (key, closeness)) in enumerate(keys):
            if key is None:
                self.fits[numbers[place]] = False
            else:
                self.queue(Place(key, numbers[place], closeness))
            if done % _TELL_EVERY == 0:
                self.on_progress("bounding", done, len(points), self.best_in_short)
        self.has_bounds = True

    def stop_if_any(self) -> End | None:
        """Return why to stop, but None before a point may fit."""
        return self.stop() if self.safe or self.risky else None

    def try_smallest(self) -> None:
        """If no point is simulated, simulate one that is likely to fit, to have an early answer.

        The choice is a heuristic: most recompute, then the smallest microbatch, then the smallest
        model states.
        """

        def size(place: Place) -> tuple[float, ...]:
            point = self.points[place.number]
            saved = _MOST_SAVED_FIRST.get(point.recompute.strategy, 0)
            return saved, point.micro, self.peak_of(place), place.number

        queue = self.safe or self.risky
        if queue and not self.simulated:
            number = min(queue, key=size).number
            if self.explorer.fits(self.points[number]):
                self.exact_key(number)

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

    def best_within(self, most_bytes: float, places: Iterable[Place]) -> list[Place]:
        """Return the places with at most such a peak; that of the best of them is exact."""
        queue: list[Place] = []

        def put(place: Place) -> None:
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

    def queue(self, place: Place) -> None:
        """Queue a point with a key, or with a bound of it."""
        heapq.heappush(self.safe if self.is_safe(place) else self.risky, place)

    def peak_of(self, place: Place) -> float:
        """Return the peak of a point, or the bound of it in a bound of its key."""
        return self.explorer.objective.peak_of(place.key)

    def is_safe(self, place: Place) -> bool:
        """Whether the peak of a point is safe, or may be, if the key is a bound."""
        return self.peak_of(place) <= self.explorer.safe_bytes

    @property
    def best(self) -> list[Place]:
        """The best simulated points: those with a safe peak, or all if there are none."""
        places = sorted(self.simulated.values())
        return ([*filter(self.is_safe, places)] or places)[: self.top]

    @property
    def faster(self) -> list[Place]:
        """The simulated points before the best safe one, which fit, but may not fit in reality."""
        if not self.best or not self.is_safe(self.best[0]):
            return []
        return sorted(place for place in self.simulated.values() if place < self.best[0])[
            :NUM_FASTER
        ]

    @property
    def answer_queue(self) -> list[Place]:
        """Points that may be among the best. If some safe point fits, no risky one can be."""
        is_safe = self.best and self.is_safe(self.best[0])
        return self.safe if is_safe else [*self.safe, *self.risky]

    def outcome(self, end: End) -> SearchOutcome:
        """Return the best points, the counts, and what is proved, until now."""
        best, faster = self.best, self.faster
        num_seen, num_fitting = len(self.fits), sum(self.fits.values())
        if not best:
            peaks_bytes = self.explorer.peaks_bytes
            nearest = min(peaks_bytes, key=peaks_bytes.__getitem__, default=self.points[0])
            return SearchOutcome((), num_seen, 0, 0, end, nearest)
        # A safe point goes before all risky ones: nothing is proved of these while one may fit.
        is_answer = self.has_bounds and (self.is_safe(best[0]) or not self.safe)
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
            bound=min(best[0], first).key[0] if self.has_bounds else None,
            num_bounded=len(self.bounded),
            num_proved=num_proved,
            front=self.front(),
            faster=self.candidates(faster),
            faster_exact=self.has_bounds
            and fastest <= min(self.safe + self.risky, default=fastest),
        )

    def front(self) -> tuple[Candidate, ...]:
        """Return simulated points, each of which needs noticeably less memory than all before."""
        if self.explorer.objective.ranks_memory:
            return ()
        most_bytes, front = self.peak_of(self.best[0]), list[Place]()
        for place in sorted(self.simulated.values()):
            if self.peak_of(place) <= most_bytes:
                front.append(place)
                most_bytes = self.peak_of(place) - _NOTICEABLE * self.explorer.limit_bytes
        return self.candidates(front)

    def candidates(self, places: Sequence[Place]) -> tuple[Candidate, ...]:
        """Return points with their evaluations."""
        return self.explorer.candidates([self.points[place.number] for place in places])

    def report(self, phase: str) -> None:
        """Report progress; raise StopRequestedError if the search must stop."""
        check(self.stop)
        if self.num_steps % _TELL_EVERY == 0:
            self.on_progress(phase, len(self.fits), len(self.points), self.best_in_short)
        self.num_steps += 1


def _nearest(explorer: Explorer, points: Sequence[Point]) -> Point:
    """Find the point with the smallest peak: bounds of increasing closeness exclude most points."""

    def key_of(peak_bytes: Callable[[Point], int], number: int) -> Key:
        return peak_bytes(points[number]), 0.0

    queue = [Place(key_of(explorer.states_bytes, number), number) for number in range(len(points))]
    heapq.heapify(queue)
    closer = [partial(key_of, peak) for peak in (explorer.least_peak_bytes, explorer.peak_bytes)]
    return points[next(best_first(queue, closer, partial(heapq.heappush, queue))).number]


def _exhaust(results: Iterable[object]) -> None:
    for _ in results:
        pass
