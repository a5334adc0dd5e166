"""What runs elsewhere while a stage waits, compiled: the same sums as `breakdown` makes."""

from __future__ import annotations

import numpy as np
from numba import njit

from simtrain.engine.interval_kernel import common_s, intervals_of, merged


@njit(cache=True)
def gap_seconds(own, others, parts, starts, tasks, start_s, end_s):
    """Seconds of all stages' gaps in which others run, for each part.

    `tasks[starts[q]:starts[q + 1]]` are those of queue q. `own` are the queues of the stages,
    `others[stage, part]` the queues of a part that may keep a stage waiting, -1 for none. A gap in
    which several parts run counts once, to the first of them.
    """
    makespan_s = end_s.max()
    found_s = np.zeros(parts)
    for stage, queue in enumerate(own):
        busy = intervals_of(tasks[starts[queue] : starts[queue + 1]], start_s, end_s)
        gaps = _gaps(busy, makespan_s)
        running = np.empty((0, 2))
        explained_s = 0.0
        for part in range(parts):
            for other in others[stage, part]:
                if other >= 0:
                    more = tasks[starts[other] : starts[other + 1]]
                    running = merged(running, intervals_of(more, start_s, end_s))
            covered_s = common_s(gaps, running)
            found_s[part] += covered_s - explained_s
            explained_s = covered_s
    return found_s


@njit(cache=True)
def _gaps(busy, makespan_s):
    gaps = np.empty((len(busy) + 1, 2))
    number = 0
    end_s = 0.0
    for place in range(len(busy) + 1):
        start_s = busy[place, 0] if place < len(busy) else makespan_s
        if start_s > end_s:
            gaps[number, 0] = end_s
            gaps[number, 1] = start_s
            number += 1
        if place < len(busy):
            end_s = busy[place, 1]
    return gaps[:number]
