"""Where the seconds of a pass go, compiled: the same sums as `chunk.simulate_chunk` makes."""

from __future__ import annotations

import numpy as np
from numba import njit

from simtrain.engine.interval_kernel import intervals_of, merged, outside_s


@njit(cache=True)
def parts_of(compute, again, exchanges, divisions, start_s, end_s):
    """Seconds of compute, of recompute, of exposed communication, of the same over replicas.

    `compute` are the kernels in issue order, of which `again` says which are run again;
    `exchanges` and `divisions` are the collectives over replicas and over others.
    """
    compute_s = 0.0
    recompute_s = 0.0
    for place, task in enumerate(compute):
        if again[place]:
            recompute_s += end_s[task] - start_s[task]
        else:
            compute_s += end_s[task] - start_s[task]
    busy = intervals_of(compute, start_s, end_s)
    exchanging = intervals_of(exchanges, start_s, end_s)
    dividing = intervals_of(divisions, start_s, end_s)
    exposed_s = outside_s(exchanging, busy)
    divided_s = outside_s(dividing, merged(busy, exchanging))
    return compute_s, recompute_s, exposed_s, divided_s


@njit(cache=True)
def layer_ends(tasks, counts, end_s):
    """For each count of tasks, the latest end of the first so many."""
    ends_s = np.empty(len(counts))
    latest_s = 0.0
    done = 0
    for place, count in enumerate(counts):
        while done < count:
            latest_s = max(latest_s, end_s[tasks[done]])
            done += 1
        ends_s[place] = latest_s
    return ends_s
