"""Bound groups of points in the process of the search or in several worker processes.

The search receives the bounds in the same order from any number of workers, so this number does not
change the result. The search itself computes what the few points near the best need.
"""

from __future__ import annotations

import functools
import math
import os
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, wait

from simtrain.base.function_caches import without_garbage_collection
from simtrain.errors import InputError, Location
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.explorer import Explorer
from simtrain.studies.search.search_end import Stop, check
from simtrain.studies.search.space import Point

_CHUNK = 128
"""Groups per message to a worker."""
_MANY, _MOST = 10_000, 8
"""Legal points from which workers repay their start, and the workers that a search has at most."""
_POLL_S = 0.05
"""Time between two checks for a stop request while the search waits for a worker."""


class Workers:
    """Bounds groups in this process, or in the worker processes of an executor."""

    def __init__(self, explorer: Explorer, executor: Executor | None = None) -> None:
        self.explorer = explorer
        self._executor = executor

    def group_keys(
        self, groups: Sequence[Sequence[Point]], stop: Stop
    ) -> Iterator[tuple[int, Key | None]]:
        """Yield the numbers and the bounds of groups. See `Explorer.group_key`.

        Raises:
            StopRequestedError: `stop` returns a reason.
            InputError: a worker process died.
        """
        order = _order(groups, Point.of(self.explorer.space.base))
        if self._executor is None:
            for number in order:
                check(stop)
                yield number, self.explorer.group_key(groups[number])
            return
        explorer = self.explorer
        inputs = pickle.dumps((explorer.space, explorer.objective, explorer.limit_bytes))
        chunks = [order[start : start + _CHUNK] for start in range(0, len(order), _CHUNK)]
        try:
            futures = [
                self._executor.submit(_group_keys, inputs, [groups[number] for number in chunk])
                for chunk in chunks
            ]
            for chunk, future in zip(chunks, futures, strict=True):
                while not wait([future], _POLL_S).done:
                    check(stop)
                yield from zip(chunk, future.result(), strict=True)
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


def _order(groups: Sequence[Sequence[Point]], base: Point) -> list[int]:
    """Return the numbers of groups in the order in which they are bounded.

    The smallest microbatches are first, because they fit most often. Groups whose ranks run the
    same layers share most of the work, so they are neighbours; the nearest to the scenario's own
    layout are first, because somebody chose it: one of the first groups is then a good answer.
    """

    def position(number: int) -> tuple[float, ...]:
        """Return what the order is by: microbatch, layer of a rank, number of stages."""
        point = groups[number][0]
        layers, base_layers = _layer_split(point), _layer_split(base)
        stages = abs(math.log(point.pipeline / base.pipeline))
        return point.micro, math.dist(layers, base_layers), *layers, stages

    return sorted(range(len(groups)), key=position)


def _layer_split(point: Point) -> tuple[float, ...]:
    """Return the logarithms of how many ranks share a layer, along each axis."""
    ranks = point.tensor, point.context, point.expert, point.expert_tensor or point.tensor
    return tuple(map(math.log, ranks))


def worker_died() -> InputError:
    """Build the error for a worker process that ended by itself."""
    reason = "the system ends processes when memory runs out, and libraries can crash"
    fix = "search with fewer --workers; with 1 this process shows what happens"
    return InputError.of("E836", "a worker died", Location("--workers"), fix, reason)


@functools.lru_cache(maxsize=1)
def _explorer(pickled: bytes) -> Explorer:
    """The explorer of this worker, cached with the times of its passes."""
    space, objective, limit_bytes = pickle.loads(pickled)
    return Explorer(space, Evaluator(), objective, limit_bytes)


@without_garbage_collection()
def _group_keys(inputs: bytes, groups: Sequence[Sequence[Point]]) -> list[Key | None]:
    """Return the bounds of groups."""
    return [*map(_explorer(inputs).group_key, groups)]
