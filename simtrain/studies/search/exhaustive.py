"""Finds the best points of a space exactly, and simulates only the points that a proof needs.

The search is best-first, with one queue:

1. Quick bounds from busy streams and memory queue all points. In a large space, points are left out
   whose layers alone take longer than the best of the opening.
2. If the first point of the queue has a quick bound, its exact peak decides whether it fits. If it
   fits, it is queued again, with a close bound of its time.
3. If the first point of the queue has a close bound, it is simulated. The search ends when the
   first point has a bound above the last of the best.

Points whose peak is safe are ranked first. Those that fit, but may not fit in reality, are ranked
apart in the same way: only the few that are better than the best safe point.

Peaks are computed before close bounds, because the answer includes the number of points that fit.
Peaks that cannot change the ranking are computed last. A point that fits is simulated immediately
if its bound is below the best so far, to have an answer early.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.explorer import (
    WORST,
    Candidate,
    Explorer,
    ProgressCallback,
    SearchOutcome,
)
from simtrain.studies.search.ranking import NUM_FASTER, Place, Ranking
from simtrain.studies.search.space import Point
from simtrain.studies.search.stopping import Stop, Stopped, StopRequestedError, check
from simtrain.studies.search.words import in_short
from simtrain.studies.search.workers import Workers
from simtrain.units import format_seconds

_MOST_SAVED_FIRST = {"full": 0, "selective": 1, "none": 2}
"""Recompute strategies in ascending order of memory."""

_TELL_EVERY = 64
"""Points between two updates of the progress bar; a new best updates it at once."""

_LESS_MEMORY = (0.75, 0.5, 0.25)
"""Peaks of layouts with less memory, as shares of the peak of the best."""
_TRIES = 6
"""Layouts with such a peak that may be simulated."""
_NOTICEABLE = 0.02
"""Least difference between the peaks of a front, as a share of the limit."""

_MOST_COUNTED = 10_000
"""Legal points up to which a search counts how many fit; of more, that takes half of its time."""


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
    cut_short: Stopped | None = None,
) -> SearchOutcome:
    """Find the `top` best points, exactly unless the search is stopped.

    The search begins with points that fit and that the explorer has `simulated`. Without any, a
    first point that is likely to fit is evaluated in any case. With `only_best`, and in large
    spaces, points that cannot be among the best are not evaluated; with `only_best`, neither are
    points that are better than the best safe one, but may not fit. `with_front` also looks for fast
    points that need less memory. If the list of points was `cut_short`, nothing is proved and only
    the simulated points are ranked.
    """
    search = _Search(explorer, workers, points, top, on_progress, stop)
    search.take(simulated)
    if cut_short:
        search.num_unbounded, search.is_partial = len(points) - len(search.taken), True
        return search.outcome(cut_short)
    counts = not only_best and len(points) <= _MOST_COUNTED
    stopped = search.bound(excludes=not counts)
    if not simulated:
        search.begin()
    try:
        if stopped is None:
            search.rank(search.safe)
            if not only_best or not search.safe.best:
                search.rank_faster()
            if with_front and not explorer.objective.ranks_memory:
                search.look_for_less_memory()
            if counts:
                search.count()
    except StopRequestedError as request:
        stopped = request.why
    if search.answer.best or stopped:
        return search.outcome(stopped)
    return SearchOutcome((), len(points), 0, 0, _nearest(explorer, points), exact=True)


@dataclass
class _Search:
    """State of a search.

    Args:
        num_unbounded: points without a bound, because the search was stopped.
        is_partial: the list of points was cut short.
        num_excluded: points that cannot be among the best, and may fit or not.
        num_assessed: points whose exact peak was computed for a ranking.
        num_counted: other points with a known peak.
        quick: the points that may fit, with their quick bounds.
        safe: the ranking of points whose peak is safe. It also bounds points whose peak may turn
            out not to be.
        risky: the ranking of the other points that fit.
        taken: numbers of the points that were simulated before the search.
    """

    explorer: Explorer
    workers: Workers
    points: Sequence[Point]
    top: int
    on_progress: ProgressCallback
    stop: Stop
    num_unbounded: int = 0
    is_partial: bool = False
    num_excluded: int = 0
    num_assessed: int = 0
    num_counted: int = 0
    quick: list[Place] = field(default_factory=list)
    num_fitting: int = 0
    num_bounded: int = 0
    num_simulated: int = 0
    taken: set[int] = field(default_factory=set)
    best_in_short: str = ""
    is_news: bool = False

    def __post_init__(self) -> None:
        """Begin both rankings."""
        self.safe, self.risky = Ranking(self.top), Ranking(self.top)

    @property
    def answer(self) -> Ranking:
        """The ranking that the search answers with: that of risky points if no other fits."""
        return self.safe if self.safe.best else self.risky

    def ranking_of(self, key: Key) -> Ranking:
        """Return the ranking of a point with this key, or that it may be in with this bound."""
        is_safe = self.explorer.objective.peak_of(key) <= self.explorer.safe_bytes
        return self.safe if is_safe else self.risky

    def take(self, simulated: Sequence[Point]) -> None:
        """Begin with points that fit and were simulated before."""
        if simulated:
            numbers = {point: number for number, point in enumerate(self.points)}
            self.taken = {numbers[point] for point in simulated}
            self.num_fitting = len(self.taken)
            for number in sorted(self.taken):
                self.simulate(number)

    def bound(self, *, excludes: bool) -> Stopped | None:
        """Order the points that may fit by their bounds.

        Args:
            excludes: leave out points that cannot be among the best, and do not say whether they
                fit.

        Returns:
            Why the search stopped before all points had bounds; it does not before one may fit.
        """
        numbers = {point: number for number, point in enumerate(self.points)}
        points = [self.points[at] for at in range(len(self.points)) if at not in self.taken]
        worst = self.safe.best[-1].key if excludes and self.safe.is_full else None
        self.num_unbounded = len(points)
        stopped: Stopped | None = None
        try:
            bounds = self.workers.quick_bounds(points, worst, self.stop_if_any)
            for done, (point, bound) in enumerate(bounds):
                self.num_unbounded -= 1
                if bound == "beaten":
                    self.num_excluded += 1
                elif bound != "too large" and bound != "failed":
                    self.quick.append(Place(bound, numbers[point]))
                if done % _TELL_EVERY == 0:
                    self.on_progress("bounding", done, len(self.points), self.best_in_short)
                    check(self.stop_if_any)
        except StopRequestedError as request:
            stopped = request.why
        for ranking in (self.safe, self.risky):
            ranking.begin([each for each in self.quick if self.ranking_of(each.key) is ranking])
        return stopped

    def stop_if_any(self) -> Stopped | None:
        """Return why to stop, but None before a point may fit."""
        return self.stop() if self.quick or self.answer.best else None

    def begin(self) -> None:
        """Evaluate a point that is likely to fit, to have an answer if the search is stopped.

        The choice is a heuristic: most recompute, then the smallest microbatch, then the smallest
        model states.
        """

        def savings(place: Place) -> tuple[int, int]:
            point = self.points[place.number]
            return _MOST_SAVED_FIRST.get(point.recompute.strategy, 0), point.micro

        def states_bytes(place: Place) -> tuple[int, int]:
            return self.explorer.least_peak_bytes(self.points[place.number]), place.number

        ranking = self.safe if self.safe.queue else self.risky
        places = ranking.unseen
        if not places:
            return
        most = min(map(savings, places))
        smallest = min((place for place in places if savings(place) == most), key=states_bytes)
        ranking.begin([place for place in places if place != smallest])
        self.quick.remove(smallest)
        if self.explorer.fits(self.points[smallest.number]):
            self.num_fitting += 1
            self.simulate(smallest.number)

    def rank(self, ranking: Ranking) -> None:
        """Assess and simulate points until no other point can be in a ranking."""
        # Workers assess ahead, in the order in which the queue will ask for the points.
        ahead = [self.points[place.number] for place in ranking.unseen]
        assessments = self.workers.assessments(ahead, self.stop, bounded=True)
        while not ranking.is_final:
            self.report("searching")
            (_, number), is_close = ranking.queue[0]
            # Assessed before it is removed: a search that is stopped here has not seen the point.
            least_key = None if is_close else next(assessments).least_key
            ranking.pop()
            if is_close:
                self.simulate(number)
                continue
            self.num_assessed += 1
            if least_key is None:
                continue
            self.num_fitting += 1
            self.num_bounded += 1
            place = Place(least_key, number)
            if self.ranking_of(least_key) is not ranking:
                self.risky.wait(place)
            elif ranking.leads(place):
                self.simulate(number)
            else:
                ranking.wait(place)

    def rank_faster(self) -> None:
        """Rank risky points: those better than the best safe one, or all if none is safe."""
        if self.safe.best:
            self.risky.end(NUM_FASTER, self.safe.best[0])
        self.rank(self.risky)

    def look_for_less_memory(self) -> None:
        """Simulate a few fast points that need less and less memory."""
        if not self.answer.best:
            return
        self.quick.sort()
        most_bytes = self.explorer.objective.peak_of(self.answer.best[0].key)
        for share in _LESS_MEMORY:
            self.simulate_below(share * most_bytes)

    def simulate_below(self, most_bytes: float) -> None:
        """Simulate the points of least bounds whose peak is at most so many bytes."""
        explorer = self.explorer
        best, num_tried = WORST, 0
        peak_of = explorer.objective.peak_of
        for number in (place.number for place in self.quick if peak_of(place.key) <= most_bytes):
            if num_tried == _TRIES:
                break
            point = self.points[number]
            check(self.stop)
            if explorer.peak_bytes(point) > most_bytes:
                continue
            num_tried += 1
            least_key = explorer.assess(point, bounded=True).least_key
            if least_key is not None and least_key < best:
                best = min(best, explorer.key(point))

    def front(self) -> tuple[Candidate, ...]:
        """Return simulated points, each of which needs noticeably less memory than all before."""
        explorer = self.explorer
        is_safe = self.answer is self.safe
        most_bytes = float(explorer.safe_bytes if is_safe else explorer.limit_bytes)
        fitting = [
            point
            for point, evaluation in explorer.evaluations.items()
            if evaluation.run and evaluation.peak_bytes <= most_bytes
        ]
        front = list[Point]()
        for point in sorted(fitting, key=explorer.key):
            if explorer.peak_bytes(point) <= most_bytes:
                front.append(point)
                most_bytes = explorer.peak_bytes(point) - _NOTICEABLE * explorer.limit_bytes
        return explorer.candidates(front)

    def count(self) -> None:
        """Count how many of the other points fit.

        Of points that differ only in their microbatch, those up to a size fit: bisection finds it.
        """
        groups: dict[Point, list[Point]] = {}
        # Neighbours in the order of the space share most of their work.
        for number in sorted(place.number for place in self.unseen):
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
                self.report("counting what fits")

    @property
    def unseen(self) -> list[Place]:
        """Points that were not assessed when the rankings ended."""
        return [*self.safe.unseen, *self.risky.unseen]

    def simulate(self, number: int) -> None:
        """Simulate a point that fits and insert it into the best."""
        point = self.points[number]
        self.num_simulated += 1
        if not self.explorer.runs(point):
            self.num_fitting -= 1
            return
        place = Place(self.explorer.key(point), number)
        self.ranking_of(place.key).insert(place)
        if self.answer.best[0].number == number:
            (candidate,) = self.explorer.candidates([point])
            self.best_in_short = (
                f"{format_seconds(candidate.run.iteration_time_s)}: {in_short(point)}"
            )
            self.is_news = True

    def outcome(self, stopped: Stopped | None) -> SearchOutcome:
        """The best points and the counts until now."""
        num_unseen = self.num_unbounded + self.num_excluded + len(self.unseen) - self.num_counted
        num_seen = len(self.points) - num_unseen
        answer = self.answer
        if not answer.best:
            peaks_bytes = self.explorer.peaks_bytes
            nearest = min(peaks_bytes, key=peaks_bytes.__getitem__, default=self.points[0])
            return SearchOutcome((), num_seen, 0, 0, nearest, stopped)
        if answer is self.safe:
            self.risky.end(NUM_FASTER, answer.best[0])
        faster = self.risky.best if answer is self.safe else []
        heads = [place for place in (self.safe.head, self.risky.head) if place]
        own_heads = [place for place in (self.safe.head, answer.head) if place]
        # A safe point goes before all risky ones.
        is_answer = answer is self.safe or self.safe.head is None
        has_bounds = not self.num_unbounded and not self.is_partial
        first, *_ = *faster, *answer.best
        return SearchOutcome(
            self.candidates(answer.best),
            num_seen,
            self.num_fitting,
            self.num_simulated,
            stopped=stopped,
            exact=has_bounds and is_answer and answer.is_final,
            bound=min([answer.best[0], *own_heads]).key[0] if has_bounds else None,
            num_bounded=self.num_bounded,
            num_proved=sum(place <= min(own_heads, default=place) for place in answer.best)
            * (has_bounds and is_answer),
            front=() if self.explorer.objective.ranks_memory else self.front(),
            faster=self.candidates(faster),
            faster_exact=has_bounds and first <= min(heads, default=first),
        )

    def candidates(self, places: Sequence[Place]) -> tuple[Candidate, ...]:
        """Return points of a ranking with their evaluations."""
        return self.explorer.candidates([self.points[place.number] for place in places])

    def report(self, phase: str) -> None:
        """Report progress; raise StopRequestedError if the search must stop."""
        check(self.stop)
        num_seen = self.num_assessed + self.num_counted
        if num_seen % _TELL_EVERY == 0 or self.is_news:
            self.on_progress(phase, num_seen, len(self.quick), self.best_in_short)
            self.is_news = False


def _nearest(explorer: Explorer, points: Sequence[Point]) -> Point:
    """Find the point with the smallest peak: bounds of increasing closeness exclude most points."""
    peaks = explorer.states_bytes, explorer.least_peak_bytes, explorer.peak_bytes
    heap = [(explorer.states_bytes(point), place, 0) for place, point in enumerate(points)]
    heapq.heapify(heap)
    while (first := heap[0])[2] < len(peaks) - 1:
        _, place, closeness = first
        heapq.heapreplace(heap, (peaks[closeness + 1](points[place]), place, closeness + 1))
    return points[heap[0][1]]
