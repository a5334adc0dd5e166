"""Yields points in the exact order of their keys, and computes few of the keys.

Every point waits in one queue with a lower bound of its key, alone or in a group of points that
share the bound. The first of the queue is replaced by closer bounds, step by step, until it is a
point whose key is exact: then no other point can be before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from simtrain.studies.objectives.objective import Key


class QueuePlace(NamedTuple):
    """Where a point or a group is in a queue.

    Args:
        key: its key, or a lower bound of it.
        number: the number of the point, or of the group's first point; it breaks ties.
        closeness: how many steps led to the key; after all of them it is exact.
    """

    key: Key
    number: int
    closeness: int = 0


def best_first(
    queue: list[QueuePlace],
    closer: Sequence[Callable[[int], Iterable[QueuePlace]]],
    put: Callable[[QueuePlace], None],
    last: QueuePlace | None = None,
) -> Iterator[QueuePlace]:
    """Yield the points of a queue in the order of their exact keys, and remove them.

    Args:
        queue: a heap. If a step raises an error, it still has the point.
        closer: steps to an exact key. Each returns the places, with closer bounds, of the point or
            of the group with a number, but not of points that are to be left out.
        put: puts a point with its closer bound back into the queue, or elsewhere.
        last: no point behind this place is yielded.
    """
    while queue and (last is None or queue[0] <= last):
        first = queue[0]
        if first.closeness == len(closer):
            yield heapq.heappop(queue)
            continue
        places = [*closer[first.closeness](first.number)]
        heapq.heappop(queue)
        for place in places:
            put(place)
