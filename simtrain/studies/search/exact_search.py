"""Find the best points of a space exactly, and simulate only those that a proof needs.

All points wait in one queue with a lower bound of their key: first that of busy streams and least
memory, then that of simulated passes and the exact peak, at last the simulated key. The first point
whose key is exact is the best of all that are left. While points get their first bounds, the best
of those so far is simulated each time that their number has doubled: a search that is stopped has
an answer.
"""

from __future__ import annotations

import functools
import heapq
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from simtrain.base.values import dataclass, field
from simtrain.iteration.plan import Plan
from simtrain.iteration.planned import PlannedIteration
from simtrain.schedules import FAMILIES
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.space import COORDINATES, Point, Space, in_short
from simtrain.units import format_seconds

Key = tuple[float, float]
"""Iteration time and peak memory; equal times are ranked by memory."""
ProgressCallback = Callable[[str, int, int, str], None]
"""Reports progress: the phase of a search, steps done, total steps, and the best so far."""
NUM_FASTER = 3
"""Points that are shown of those that are better than the best safe one, but may not fit."""
_TELL_EVERY = 64
"""Steps between two updates of the progress bar; a new best updates it at once."""
_FIRST_ANSWER = 256
"""Points with a first bound before the best of them is simulated; then whenever they double."""
_FAILED_BYTES = sys.maxsize
"""Peak of a point that cannot be evaluated: it never fits."""
_T = TypeVar("_T")


class End(StrEnum):
    """Why a search was stopped."""

    BUDGET = "budget"
    INTERRUPT = "interrupt"


Stop = Callable[[], End | None]
"""Returns why to stop, or None to continue; called repeatedly."""


class _StopRequestedError(Exception):
    """A search must stop, because its budget is spent or it was interrupted."""


def stop_after(seconds: float | None, interrupted: Callable[[], bool]) -> Stop:
    """Return a function that says why the search must stop; its time begins now."""
    end_s = math.inf if seconds is None else time.monotonic() + seconds

    def stop() -> End | None:
        if interrupted():
            return End.INTERRUPT
        return End.BUDGET if time.monotonic() >= end_s else None

    return stop


@functools.cache
def _traits(schedule: str) -> tuple[bool, bool, int]:
    """Return what a schedule's order does with passes, whatever its sizes."""
    family = FAMILIES[schedule]
    return family.merges, family.splits_backwards, family.placement(2, 1).copies


class Explorer:
    """Evaluates points of a space, and bounds them.

    A point that cannot be evaluated must not end a search, which would lose its ranking: its error
    is kept in `failures`, and it counts as a point that does not fit.

    Args:
        limit_bytes: the largest peak that fits.
        safe_bytes: the largest peak of a point that may be the best; by default every peak that
            fits. Points with larger peaks are ranked apart.
    """

    def __init__(
        self, space: Space, evaluator: Evaluator, limit_bytes: int, safe_bytes: int | None = None
    ) -> None:
        self.space, self.evaluator, self.limit_bytes = space, evaluator, limit_bytes
        self.safe_bytes = limit_bytes if safe_bytes is None else safe_bytes
        self.failures: dict[Point, Exception] = {}
        self._machine = evaluator.machine_of(space.base)
        self.bounds = Bounds(self._machine)
        self._evaluations: dict[Point, Evaluation] = {}
        self.peaks_bytes: dict[Point, int] = {}
        self._too_large: dict[tuple[Point, bool], int] = {}
        # Memory and time of a point are asked for in turn.
        self._plan = functools.lru_cache(maxsize=8)(self._new_plan)
        self._work_s: dict[tuple[Any, ...], float] = {}

    def attempt(self, point: Point, evaluate: Callable[[Point], _T], otherwise: _T) -> _T:
        """Return `evaluate(point)`, or `otherwise` if it fails now or has failed before."""
        if point in self.failures:
            return otherwise
        try:
            return evaluate(point)
        except Exception as error:
            self.failures[point] = error
            return otherwise

    def evaluation(self, point: Point) -> Evaluation:
        """Evaluate a point; it is simulated if it fits. Raises the error of a point that fails."""
        if point not in self._evaluations:
            self._evaluations[point] = self.evaluator.evaluate(self.space.scenario(point))
        return self._evaluations[point]

    def peak_bytes(self, point: Point) -> int:
        if point not in self.peaks_bytes:
            self.peaks_bytes[point] = self.attempt(point, self._peak_bytes, _FAILED_BYTES)
        return self.peaks_bytes[point]

    def _peak_bytes(self, point: Point) -> int:
        return PlannedIteration(self._plan(point), self._machine).fit.peak_bytes

    def _new_plan(self, point: Point) -> Plan:
        return PlannedIteration.of(self.space.scenario(point), self._machine).plan

    def work_s(self, point: Point) -> float:
        """Return a lower bound of the time of all points with the same ranks and microbatches."""
        ranks = point[: COORDINATES.index("interleave")], point.off, _traits(point.schedule)
        alike = *ranks, point.micro, point.sequence_parallel, point.zero_stage == 3
        if alike not in self._work_s:
            self._work_s[alike] = self.attempt(
                point, lambda point: self.bounds.work_s(self._plan(point)), 0.0
            )
        return self._work_s[alike]

    def least_key(self, point: Point, most_s: float = math.inf) -> Key | None:
        """Return a lower bound of a point's key; None if the point does not fit.

        The peak is 0 if its work alone takes more than `most_s`. A larger microbatch needs no less
        memory, if gradients wait for the same passes: if a smaller one does not fit, it does not.
        """
        is_alone = point.micro * point.data == self.space.base.batch.global_
        alike = point._replace(micro=1), is_alone and point.zero_stage == 3
        if point.micro > self._too_large.get(alike, math.inf):
            return None
        if (work_s := self.work_s(point)) > most_s:
            return work_s, 0
        peak_bytes = self.peak_bytes(point)
        if peak_bytes > self.limit_bytes:
            if point not in self.failures and not FAMILIES[point.schedule].splits_backwards:
                self._too_large[alike] = point.micro
            return None
        return self.attempt(
            point, lambda point: (self.bounds.busy_s(self._plan(point)), peak_bytes), None
        )

    def key(self, point: Point) -> Key | None:
        """Return the exact key of a point; None if the point does not fit."""
        key = self.attempt(point, lambda point: key_of(self.evaluation(point)), None)
        return None if key is None or key[1] > self.limit_bytes else key


def key_of(evaluation: Evaluation) -> Key:
    """Return the ranking key of an evaluation; without a time it ranks last."""
    return evaluation.run.iteration_time_s if evaluation.run else math.inf, evaluation.peak_bytes


class QueuePlace(NamedTuple):
    """Where a point is in a queue.

    Args:
        closeness: 0 for a bound of the work, 1 for one of the time and the memory, 2 if exact.
    """

    key: Key
    number: int
    closeness: int = 0


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best points, the counts, and how much is proved of them.

    Args:
        best: the best points with a safe peak, in order; of all that fit, if none has one.
        num_seen: points that are known to fit or not to fit.
        nearest: the point with the smallest peak, if no point fits.
        bound: lower bound of the time of all points with a safe peak; None if some have none yet.
        faster: the best of the points that are better than `best`, but may not fit.
        faster_exact: whether the first of `faster`, or else of `best`, is the best of all legal
            points that fit or may not fit.
    """

    best: tuple[Point, ...]
    num_seen: int
    num_fitting: int
    num_simulated: int
    stopped: End | None = None
    nearest: Point | None = None
    bound: float | None = None
    num_bounded: int = 0
    exact: bool = False
    faster: tuple[Point, ...] = ()
    faster_exact: bool = False


def search_all(
    explorer: Explorer,
    points: Sequence[Point],
    top: int,
    on_progress: ProgressCallback,
    stop: Stop,
    *,
    first: Point | None = None,
    only_best: bool = False,
) -> SearchOutcome:
    """Find the `top` best points, exactly unless the search is stopped.

    It is not stopped before it has simulated a point that fits. `first` is the base's own layout.
    With `only_best`, points that are better than the best safe one, but may not fit, are not
    searched.
    """
    search = _Search(explorer, points, top, on_progress, stop)
    stopped: End | None = None
    try:
        search.bound(first or Point.of(explorer.space.base))
        search.rank(top, 0 if only_best else NUM_FASTER)
    except _StopRequestedError as request:
        (stopped,) = request.args
    if search.simulated:
        return search.outcome(stopped)
    return SearchOutcome((), len(points), 0, 0, stopped, search.nearest(), exact=True)


@dataclass
class _Search:
    """State of a search: the queue, what fits, and what was simulated, by number of the point.

    Args:
        passed: points that may not fit, and are behind the answers of that kind.
    """

    explorer: Explorer
    points: Sequence[Point]
    top: int
    on_progress: ProgressCallback
    stop: Stop
    queue: list[QueuePlace] = field(default_factory=list)
    passed: list[QueuePlace] = field(default_factory=list)
    num_bounded: int = 0
    fits: dict[int, bool] = field(default_factory=dict)
    simulated: dict[int, QueuePlace] = field(default_factory=dict)
    num_steps: int = 0
    best_in_short: str = ""

    def report(self, phase: str, done: int) -> None:
        """Tell the progress; stop if that is asked for and there is an answer."""
        if self.simulated and (why := self.stop()):
            raise _StopRequestedError(why)
        if self.num_steps % _TELL_EVERY == 0:
            self.on_progress(phase, done, len(self.points), self.best_in_short)
        self.num_steps += 1

    def bound(self, base_point: Point) -> None:
        """Queue every point that may fit with its quick bound; simulate the best early.

        The base's own layout is first, because somebody chose it; likely layouts of all splits over
        ranks follow, so that a search that is stopped has seen the layouts that matter.
        """
        answer_at, most_s = 1, math.inf
        order = sorted(range(len(self.points)), key=partial(self.distance, base_point))
        for done, number in enumerate(order, start=1):
            self.report("bounding", done)
            self.put(number, self.explorer.least_key(self.points[number], most_s))
            self.num_bounded = done
            if done == answer_at or (self.queue and not self.simulated and done >= _FIRST_ANSWER):
                answer_at = max(2 * done, _FIRST_ANSWER)
                self.queue += self.rank(self.top, 0) + self.passed
                self.passed.clear()
                heapq.heapify(self.queue)
                if len(self.best) == self.top:
                    most_s, _ = self.best[-1].key

    def distance(self, base_point: Point, number: int) -> tuple[Any, ...]:
        point = self.points[number]
        return (
            point != base_point,
            point.micro,
            point.zero_stage != base_point.zero_stage,
            point.sequence_parallel != (point.tensor > 1),
            point.interleave != base_point.interleave,
            number,
        )

    def put(self, number: int, key: Key | None, *, is_exact: bool = False) -> QueuePlace | None:
        """Queue a point with a key; one without does not fit."""
        if key is None:
            self.fits[number] = False
            return None
        closeness = 2 if is_exact else int(key[1] > 0)
        heapq.heappush(self.queue, place := QueuePlace(key, number, closeness))
        return place

    def put_closer(self, place: QueuePlace) -> None:
        """Queue a point again, with a closer bound or its exact key, if it fits."""
        self.report("searching", len(self.fits))
        number, point = place.number, self.points[place.number]
        heapq.heappop(self.queue)
        if place.closeness == 0:
            self.put(number, self.explorer.least_key(point))
        elif closer := self.put(number, self.explorer.key(point), is_exact=True):
            self.fits[number], self.simulated[number] = True, closer
            if self.best[0] is closer:
                time_s = self.explorer.evaluation(point).iteration_time_s
                self.best_in_short = f"{format_seconds(time_s)}: {in_short(point)}"
                self.num_steps = 0  # tells it at once

    def rank(self, top: int, num_risky: int) -> list[QueuePlace]:
        """Take the best points out of the queue: `top` safe ones, and better ones that may not fit.

        The first of the queue gets a closer bound until its key is exact: no other can be before
        it. If no point is safe, return the best of all.
        """
        safe, risky = list[QueuePlace](), list[QueuePlace]()
        while self.queue and len(safe) < top:
            place = self.queue[0]
            if not self.is_safe(place) and (safe or len(risky) == num_risky):
                self.passed.append(heapq.heappop(self.queue))
            elif place.closeness < 2:
                self.put_closer(place)
            else:
                (safe if self.is_safe(place) else risky).append(heapq.heappop(self.queue))
        if safe or len(risky) >= top or not self.passed:
            return safe + risky
        # Nothing is left in the queue: rank what may not fit.
        self.queue, self.passed = self.passed, []
        heapq.heapify(self.queue)
        return risky + self.rank(top - len(risky), top - len(risky))

    def nearest(self) -> Point:
        """Return the point with the smallest peak, if none fits."""
        peaks_bytes = self.explorer.peaks_bytes
        return min(self.points, key=lambda point: peaks_bytes.get(point, math.inf))

    def is_safe(self, place: QueuePlace) -> bool:
        """Whether the peak of a point is safe, or the bound of it in a bound of its key."""
        return place.key[1] <= self.explorer.safe_bytes

    @property
    def best(self) -> list[QueuePlace]:
        """The best simulated points: those with a safe peak, or all if there are none."""
        places = sorted(self.simulated.values())
        return ([*filter(self.is_safe, places)] or places)[: self.top]

    def outcome(self, stopped: End | None) -> SearchOutcome:
        """Return the best points, the counts, and what is proved, until now."""
        best, places = self.best, sorted(self.simulated.values())
        is_safe = self.is_safe(best[0])
        faster = [place for place in places if place < best[0]][:NUM_FASTER] if is_safe else []
        all_left = [
            place for place in self.queue + self.passed if place.number not in self.simulated
        ]
        safe = [*filter(self.is_safe, all_left)]
        # A safe point goes before all risky ones: nothing is proved of these while one may fit.
        has_bounds = self.num_bounded == len(self.points)
        is_answer = has_bounds and (is_safe or not safe)
        left = safe if is_safe else all_left
        first, fastest = min(left, default=best[-1]), [*faster, *best][0]
        is_complete = len(best) == self.top or not left
        return SearchOutcome(
            self.points_at(best),
            len(self.fits),
            sum(self.fits.values()),
            len(self.simulated),
            stopped,
            bound=min(best[0], first).key[0] if has_bounds else None,
            num_bounded=self.num_bounded,
            exact=is_answer and is_complete and best[-1] <= first,
            faster=self.points_at(faster),
            faster_exact=has_bounds and fastest <= min(all_left, default=fastest),
        )

    def points_at(self, places: Iterable[QueuePlace]) -> tuple[Point, ...]:
        return tuple(self.points[place.number] for place in places)
