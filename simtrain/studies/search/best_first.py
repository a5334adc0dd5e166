"""Yields points in the exact order of their keys, and computes few of the keys.

Every point waits in one queue with a lower bound of its key. The first of the queue is replaced by
a closer bound, step by step, until its key is exact: then no other point can be before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simtrain.studies.objectives.objective import Key


class Place(NamedTuple):
    """Where a point is in a queue.

    Args:
        key: its key, or a lower bound of it.
        number: the point's number, which breaks ties.
        closeness: how many steps led to the key; after all of them it is exact.
    """

    key: Key
    number: int
    closeness: int = 0


def best_first(
    queue: list[Place],
    closer: Sequence[Callable[[int], Key | None]],
    put: Callable[[Place], None],
    last: Place | None = None,
) -> Iterator[Place]:
    """Yield the points of a queue in the order of their exact keys, and remove them.

    Args:
        queue: a heap. If a step raises an error, it still has the point.
        closer: steps to an exact key. Each returns a closer lower bound of the key of the point
            with a number, or None if the point is to be left out.
        put: puts a point with its closer bound back into the queue, or elsewhere.
        last: no point behind this place is yielded.
    """
    while queue and (last is None or queue[0] <= last):
        first = queue[0]
        if first.closeness == len(closer):
            yield heapq.heappop(queue)
            continue
        key = closer[first.closeness](first.number)
        heapq.heappop(queue)
        if key is not None:
            put(Place(key, first.number, first.closeness + 1))
