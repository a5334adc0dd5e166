"""The compiled executor: the same sums as the SimPy engine makes, in the same order.

A stream is a FIFO and nothing is random, so a task starts at the latest end of what it waits for
(or at 0) and ends its duration later. Where streams slow each other, the work that is left is
brought up to date at each moment at which a contending task starts or ends, as
`simulator._Simulation.work` does. No other arithmetic is done here, so that both executors agree
to the last bit.

Arrays are arguments one by one, and the loop over moments is one function: numba counts references
to what is passed on, and a call for each task made this twenty times slower.
"""

from __future__ import annotations

import numpy as np

from simtrain.engine.compiled import Flags, Floats, Ints


def order_of(queue_starts: Ints, queue: Ints, after_starts: Ints, after: Ints) -> Ints:
    """Tasks in an order in which each comes after all that it waits for.

    `queue[queue_starts[s]:queue_starts[s + 1]]` are the tasks of stream s in their order, and
    `after[after_starts[i]:after_starts[i + 1]]` what task i waits for.
    """
    end_s = np.full(len(queue), np.inf)
    head = queue_starts[:-1].copy()
    order = np.empty(len(queue), np.int32)
    num_done = 0
    moved = True
    while moved:
        moved = False
        for stream in range(len(head)):
            while head[stream] < queue_starts[stream + 1]:
                task = queue[head[stream]]
                if not _ready(task, after_starts, after, end_s):
                    break
                end_s[task] = 0.0
                order[num_done] = task
                num_done += 1
                head[stream] += 1
                moved = True
    return order[:num_done].copy()


def longest_paths(
    order: Ints, previous: Ints, after_starts: Ints, after: Ints, duration_s: Floats
) -> tuple[Floats, Floats]:
    """Start and end of each task; infinite where it is not in `order`."""
    start_s = np.full(len(previous), np.inf)
    end_s = np.full(len(previous), np.inf)
    for task in order:
        moment = 0.0 if previous[task] < 0 else end_s[previous[task]]
        for place in range(after_starts[task], after_starts[task + 1]):
            moment = max(moment, end_s[after[place]])
        start_s[task] = moment
        end_s[task] = moment + duration_s[task]
    return start_s, end_s


def events(
    queue_starts: Ints,
    queue: Ints,
    after_starts: Ints,
    after: Ints,
    contends: Flags,
    slowed_by: Flags,
    slowdown: Floats,
    duration_s: Floats,
) -> tuple[Floats, Floats]:
    """Start and end of each task where contending tasks of some streams slow others.

    `slowed_by[s, a]` says that stream a slows stream s, by `slowdown[s]` (-1 for one that nothing
    slows). At each moment all that ends then ends and all that can starts; the victims of what
    changed are brought up to date; and again, until nothing moves any more.
    """
    num_streams = len(slowdown)
    start_s = np.full(len(duration_s), np.inf)
    end_s = np.full(len(duration_s), np.inf)
    head = queue_starts[:-1].copy()
    running = np.full(num_streams, -1, np.int32)
    finish_s = np.full(num_streams, np.inf)
    # A victim had `left_s` of work left at `begun_s`, and has been stretched by `stretch` since.
    begun_s = np.zeros(num_streams)
    left_s = np.zeros(num_streams)
    stretch = np.ones(num_streams)
    contending = np.zeros(num_streams, np.bool_)
    # What happened at this moment.
    switched = np.zeros(num_streams, np.bool_)
    started = np.zeros(num_streams, np.bool_)
    now_s = 0.0
    while now_s < np.inf:
        moved = True
        while moved:
            moved = False
            for stream in range(num_streams):
                while True:
                    task = running[stream]
                    if task >= 0:
                        if finish_s[stream] > now_s:
                            break
                        end_s[task] = now_s
                        running[stream] = -1
                        finish_s[stream] = np.inf
                        moved = True
                        if contends[task]:
                            contending[stream] = False
                            switched[stream] = True
                    if head[stream] == queue_starts[stream + 1]:
                        break
                    task = queue[head[stream]]
                    if not _ready(task, after_starts, after, end_s):
                        break
                    head[stream] += 1
                    running[stream] = task
                    started[stream] = True
                    moved = True
                    start_s[task] = now_s
                    finish_s[stream] = now_s + duration_s[task]
                    begun_s[stream] = now_s
                    left_s[stream] = duration_s[task]
                    stretch[stream] = 1.0
                    if contends[task]:
                        contending[stream] = True
                        switched[stream] = True
            for stream in range(num_streams):
                if slowdown[stream] < 0 or running[stream] < 0:
                    continue
                news = started[stream]
                contended = False
                for other in range(num_streams):
                    if slowed_by[stream, other]:
                        news |= switched[other]
                        contended |= contending[other]
                if news:
                    left_s[stream] -= (now_s - begun_s[stream]) / stretch[stream]
                    begun_s[stream] = now_s
                    stretch[stream] = 1.0 + slowdown[stream] if contended else 1.0
                    finish_s[stream] = now_s + max(left_s[stream], 0.0) * stretch[stream]
                    moved |= finish_s[stream] <= now_s
            for stream in range(num_streams):
                switched[stream] = False
                started[stream] = False
        now_s = np.inf
        for stream in range(num_streams):
            now_s = min(now_s, finish_s[stream])
    return start_s, end_s


def _ready(task: int, after_starts: Ints, after: Ints, end_s: Floats) -> bool:
    for place in range(after_starts[task], after_starts[task + 1]):
        if end_s[after[place]] == np.inf:
            return False
    return True
