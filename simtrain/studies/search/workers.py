"""Bound points in the process of the search or in several worker processes.

The search receives the bounds in the order of its points, so the number of workers does not change
the result. The search itself computes what the few points near the best need.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from typing import Any

from simtrain.base.function_caches import without_garbage_collection
from simtrain.errors import InputError, Location
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.explorer import Explorer
from simtrain.studies.search.search_end import Stop, check
from simtrain.studies.search.space import Point

QuickKey = tuple[Key | None, int]
"""A lower bound of a point's key, None if it cannot fit, and how close the bound is."""

_CHUNK = 512
"""Points per message to a worker."""
_MANY, _MOST = 10_000, 8
"""Legal points from which workers repay their start, and the workers that a search has at most."""
_POLL_S = 0.05
"""Time between two checks for a stop request while the search waits for a worker."""


class Workers:
    """Bounds points in this process, or in the worker processes of an executor."""

    def __init__(self, explorer: Explorer, executor: Executor | None = None) -> None:
        self.explorer = explorer
        self._executor = executor

    def quick_keys(
        self, points: Sequence[Point], horizon: Key | None, stop: Stop
    ) -> Iterator[tuple[int, QuickKey]]:
        """Yield the numbers and the quick bounds of points. See `Explorer.quick_key`.

        Neighbours in the order of these share most of their work: their ranks run the same layers.

        Raises:
            StopRequestedError: `stop` returns a reason.
            InputError: a worker process died.
        """
        order = sorted(range(len(points)), key=lambda number: _shared_work(points[number]))
        if self._executor is None:
            for number in order:
                check(stop)
                yield number, self.explorer.quick_key(points[number], horizon)
            return
        explorer = self.explorer
        inputs = pickle.dumps((explorer.space, explorer.objective, explorer.limit_bytes))
        chunks = [order[start : start + _CHUNK] for start in range(0, len(order), _CHUNK)]
        try:
            futures = [
                self._executor.submit(
                    _quick_keys, inputs, [points[number] for number in chunk], horizon
                )
                for chunk in chunks
            ]
            for chunk, future in zip(chunks, futures, strict=True):
                _wait(future, stop)
                keys, failures = future.result()
                for number, key in zip(chunk, keys, strict=True):
                    if points[number] in failures:
                        # Repeated here, where the search finds the error.
                        key = explorer.quick_key(points[number], horizon)
                    yield number, key
        except BrokenExecutor as error:
            # Ctrl-C also terminates the workers.
            check(stop)
            raise worker_died() from error


def default_workers(num_legal: int) -> int:
    """Return the number of workers that is fastest: one per core if many layouts are legal."""
    if num_legal < _MANY:
        return 1
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return min(len(cores), _MOST)


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
def _quick_keys(
    inputs: bytes, points: Sequence[Point], horizon: Key | None
) -> tuple[list[QuickKey], set[Point]]:
    """Return the quick bounds of points, and those of the points that failed."""
    explorer = _explorer(inputs)
    return [explorer.quick_key(point, horizon) for point in points], {*explorer.failures}
