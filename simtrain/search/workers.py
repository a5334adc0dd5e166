"""Who looks at points: the process of the search, or several beside it.

The search takes looks in the order of its points, whoever is first to finish, so that the number of
workers cannot change what it finds. It simulates the few points that need it by itself.
"""

from __future__ import annotations

import functools
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from itertools import islice

from simtrain.errors import InputError, Location
from simtrain.evaluation import Evaluator
from simtrain.search.looker import Look, Looker, Stop, Stopped
from simtrain.search.objective import Objective
from simtrain.search.space import Point, Space

_Chunk = tuple[Sequence[Point], Future[list[Look]]]

_CHUNK = 16
"""Points that a worker looks at between two messages."""
_FIRST_WINDOW, _LAST_WINDOW = 16, 512
"""Points that are looked at in the order of the space: neighbours share most of their work. The
first windows are smaller, to have an answer early."""
_WINDOWS_IN_HAND = 2
"""Windows that workers are given at a time: one to work on and one to go on with."""
_POLL_S = 0.05
"""How long the search waits for a worker before it asks again whether to stop."""


class StopRequestedError(Exception):
    """The search is to stop: its budget has been spent, or it was interrupted."""

    def __init__(self, why: Stopped) -> None:
        super().__init__(why)
        self.why = why


class Workers:
    """This process alone."""

    def __init__(self, looker: Looker) -> None:
        self.looker = looker

    def looks(self, points: Sequence[Point], stop: Stop, *, bounded: bool) -> Iterator[Look]:
        """Look at points; the looks come in the order of the points. See `Looker.look`.

        Raises:
            StopRequestedError: `stop` says so.
        """
        for point in points:
            _check(stop)
            yield self.looker.look(point, bounded=bounded)


@dataclass(frozen=True, slots=True)
class _Question:
    """All that a worker needs to make a looker of its own."""

    space: Space
    objective: Objective
    limit_bytes: int


class Processes(Workers):
    """Several processes on this machine."""

    def __init__(self, looker: Looker, executor: Executor) -> None:
        super().__init__(looker)
        self._executor = executor
        question = _Question(looker.space, looker.objective, looker.limit_bytes)
        self._question = pickle.dumps(question)

    def looks(self, points: Sequence[Point], stop: Stop, *, bounded: bool) -> Iterator[Look]:
        """As `Workers.looks`."""
        try:
            yield from self._looks(points, stop, bounded)
        except BrokenExecutor as error:
            # Ctrl-C ends the workers too.
            _check(stop)
            raise worker_died() from error

    def _looks(self, points: Sequence[Point], stop: Stop, bounded: bool) -> Iterator[Look]:
        windows = _windows(points)
        in_hand: deque[tuple[Sequence[Point], list[_Chunk]]] = deque()
        while True:
            for window in islice(windows, _WINDOWS_IN_HAND - len(in_hand)):
                in_hand.append((window, self._submit_window(window, bounded)))
            if not in_hand:
                return
            window, chunks = in_hand.popleft()
            looks: dict[Point, Look] = {}
            for chunk, future in chunks:
                while not wait([future], _POLL_S).done:
                    _check(stop)
                looks |= zip(chunk, future.result(), strict=True)
            for point in window:
                self.looker.peaks_bytes[point] = looks[point].peak_bytes
                yield looks[point]

    def _submit_window(self, window: Sequence[Point], bounded: bool) -> list[_Chunk]:
        ordered = sorted(window, key=_neighbours)
        chunks = [ordered[first : first + _CHUNK] for first in range(0, len(ordered), _CHUNK)]
        submit = self._executor.submit
        return [(chunk, submit(_look_at, self._question, chunk, bounded)) for chunk in chunks]


def _windows(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Cut points into windows, each twice as long as the one before it up to a limit."""
    first, size = 0, _FIRST_WINDOW
    while first < len(points):
        yield points[first : first + size]
        first, size = first + size, min(2 * size, _LAST_WINDOW)


def _neighbours(point: Point) -> tuple[int | None, ...]:
    """The order of the space, but for recompute, which has none."""
    return point[:-1]


def _check(stop: Stop) -> None:
    if why := stop():
        raise StopRequestedError(why)


def worker_died() -> InputError:
    """A worker process ended, and was not told to."""
    reason = "the system ends processes when memory runs out, and libraries can crash"
    fix = "search with fewer --workers; with 1 this process shows what happens"
    return InputError.of("E836", "a worker died", Location("--workers"), fix, reason)


@functools.lru_cache(maxsize=1)
def _looker(question: bytes) -> Looker:
    """The looker of this worker, which remembers what it has timed."""
    asked: _Question = pickle.loads(question)
    return Looker(asked.space, Evaluator(), asked.objective, asked.limit_bytes)


def _look_at(question: bytes, points: Sequence[Point], bounded: bool) -> list[Look]:
    looker = _looker(question)
    return [looker.look(point, bounded=bounded) for point in points]
