"""Assess points in the process of the search or in several worker processes.

The search receives assessments in the order of its points, so the number of workers does not change
the result. The search itself simulates the few points that need it.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from itertools import islice
from typing import Any

from simtrain.base.function_caches import without_garbage_collection
from simtrain.errors import InputError, Location
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.explorer import FAILED_BYTES, Assessment, Explorer, QuickBound
from simtrain.studies.search.space import Point
from simtrain.studies.search.stopping import Stop, check

_Chunk = tuple[Sequence[Point], Future[list[Assessment]]]

_CHUNK = 16
"""Points per message to a worker."""
_FIRST_WINDOW, _LAST_WINDOW = 16, 512
"""Points that are assessed in the order of the space, because neighbours share most of their work.
The first windows are smaller, to have an answer early."""
_MAX_WINDOWS = 2
"""Windows that are submitted at a time, so workers do not wait for the search."""
_MANY, _MOST = 10_000, 8
"""Legal points from which workers repay their start, and the workers that a search has at most."""
_POLL_S = 0.05
"""Time between two checks for a stop request while the search waits for a worker."""


class Workers:
    """Assesses points in this process, or in the worker processes of an executor."""

    def __init__(self, explorer: Explorer, executor: Executor | None = None) -> None:
        self.explorer = explorer
        self._executor = executor

    @functools.cached_property
    def _inputs(self) -> bytes:
        """The arguments of a worker's own explorer, by which the worker caches it."""
        explorer = self.explorer
        return pickle.dumps((explorer.space, explorer.objective, explorer.limit_bytes))

    def quick_bounds(
        self, points: Sequence[Point], worst: Key | None, stop: Stop
    ) -> Iterator[tuple[Point, QuickBound]]:
        """Yield the quick bounds of points, group by group. See `Explorer.quick_bounds`.

        Points of a group share most of their work: their ranks run the same layers.

        Raises:
            StopRequestedError: `stop` returns a reason while a worker computes.
            InputError: a worker process died.
        """
        groups: dict[tuple[object, ...], list[Point]] = {}
        for point in points:
            groups.setdefault(_shared_work(point)[:-1], []).append(point)
        if self._executor is None:
            for group in groups.values():
                yield from self.explorer.quick_bounds(group, worst)
            return
        try:
            futures = [
                self._executor.submit(_quick_bounds, self._inputs, group, worst)
                for group in groups.values()
            ]
            for future in futures:
                _wait(future, stop)
                for point, bound in future.result():
                    if bound == "failed":
                        # Repeated here, where the search finds the error.
                        yield from self.explorer.quick_bounds([point], None)
                    else:
                        yield point, bound
        except BrokenExecutor as error:
            check(stop)
            raise worker_died() from error

    def assessments(
        self, points: Sequence[Point], stop: Stop, *, bounded: bool
    ) -> Iterator[Assessment]:
        """Assess points and yield the results in their order. See `Explorer.assess`.

        Raises:
            StopRequestedError: `stop` returns a reason.
            InputError: a worker process died.
        """
        if self._executor is None:
            for point in points:
                check(stop)
                yield self.explorer.assess(point, bounded=bounded)
            return
        try:
            yield from self._in_processes(self._executor, points, stop, bounded)
        except BrokenExecutor as error:
            # Ctrl-C also terminates the workers.
            check(stop)
            raise worker_died() from error

    def _in_processes(
        self, executor: Executor, points: Sequence[Point], stop: Stop, bounded: bool
    ) -> Iterator[Assessment]:
        windows = _windows(points)
        submitted: deque[tuple[Sequence[Point], list[_Chunk]]] = deque()
        while True:
            for window in islice(windows, _MAX_WINDOWS - len(submitted)):
                ordered = sorted(window, key=_shared_work)
                starts = range(0, len(window), _CHUNK)
                chunks = [ordered[start : start + _CHUNK] for start in starts]
                futures = [
                    executor.submit(_assess, self._inputs, chunk, bounded) for chunk in chunks
                ]
                submitted.append((window, [*zip(chunks, futures, strict=True)]))
            if not submitted:
                return
            window, assessed = submitted.popleft()
            assessments: dict[Point, Assessment] = {}
            for chunk, future in assessed:
                _wait(future, stop)
                assessments |= zip(chunk, future.result(), strict=True)
            for point in window:
                if assessments[point].peak_bytes == FAILED_BYTES:
                    assessments[point] = self.explorer.assess(point, bounded=bounded)
                self.explorer.peaks_bytes[point] = assessments[point].peak_bytes
                yield assessments[point]


def default_workers(num_legal: int) -> int:
    """Return the number of workers that is fastest: one per core if many layouts are legal."""
    if num_legal < _MANY:
        return 1
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return min(len(cores), _MOST)


def _windows(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Cut points into windows of doubling length, up to a limit."""
    first, size = 0, _FIRST_WINDOW
    while first < len(points):
        yield points[first : first + size]
        first, size = first + size, min(2 * size, _LAST_WINDOW)


def _shared_work(point: Point) -> tuple[int, ...]:
    """The coordinates that divide a layer over ranks, and the microbatch."""
    return point.tensor, point.context, point.expert, point.expert_tensor or 0, point.micro


def _wait(future: Future[Any], stop: Stop) -> None:
    """Wait until a worker has a result; raise StopRequestedError if the search must stop."""
    while not wait([future], _POLL_S).done:
        check(stop)


def worker_died() -> InputError:
    """Build the error for a worker process that ended by itself."""
    reason = "the system ends processes when memory runs out, and libraries can crash"
    fix = "search with fewer --workers; with 1 this process shows what happens"
    return InputError.of("E836", "a worker died", Location("--workers"), fix, reason)


@functools.lru_cache(maxsize=1)
def _explorer(pickled: bytes) -> Explorer:
    """The explorer of this worker, cached with the times of its passes."""
    space, objective, limit_bytes = pickle.loads(pickled)
    return Explorer(
        space, Evaluator(extrapolation=objective.needs_extrapolation), objective, limit_bytes
    )


@without_garbage_collection()
def _assess(inputs: bytes, points: Sequence[Point], bounded: bool) -> list[Assessment]:
    explorer = _explorer(inputs)
    return [explorer.assess(point, bounded=bounded) for point in points]


@without_garbage_collection()
def _quick_bounds(
    inputs: bytes, points: Sequence[Point], worst: Key | None
) -> list[tuple[Point, QuickBound]]:
    return [*_explorer(inputs).quick_bounds(points, worst)]
