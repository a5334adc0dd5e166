"""The compiled executor: the same sums as the SimPy engine makes, in the same order.

A stream is a FIFO and nothing is random, so a task starts at the latest end of what it waits for
(or at 0) and ends its duration later. Where streams slow each other, the work that is left is
brought up to date at each moment at which a contending task starts or ends, as
`simulator._Simulation.work` does. No other arithmetic is done here, so that both executors agree
to the last bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit


class Queues(NamedTuple):
    """The tasks of each stream and what each task waits for (see `wiring.Wiring`)."""

    queue_starts: Any
    queue: Any
    after_starts: Any
    after: Any


class _Streams(NamedTuple):
    """What each stream does now.

    `left_s` is the work that a victim had left at `begun_s`, since when it is stretched by
    `stretch`; `switched` and `started` are what happened at this moment.
    """

    head: Any
    running: Any
    finish_s: Any
    begun_s: Any
    left_s: Any
    stretch: Any
    contending: Any
    switched: Any
    started: Any


@njit(cache=True)
def order_of(queues):
    """Tasks in an order in which each comes after all that it waits for."""
    num_streams = len(queues.queue_starts) - 1
    end_s = np.full(len(queues.queue), np.inf)
    head = queues.queue_starts[:-1].copy()
    order = np.empty(len(queues.queue), np.int32)
    num_done = 0
    moved = True
    while moved:
        moved = False
        for stream in range(num_streams):
            while head[stream] < queues.queue_starts[stream + 1]:
                task = queues.queue[head[stream]]
                if not _ready(queues, task, end_s):
                    break
                end_s[task] = 0.0
                order[num_done] = task
                num_done += 1
                head[stream] += 1
                moved = True
    return order[:num_done].copy()


@njit(cache=True)
def longest_paths(order, previous, queues, duration_s):
    """Start and end of each task; infinite where it is not in `order`."""
    start_s = np.full(len(previous), np.inf)
    end_s = np.full(len(previous), np.inf)
    for task in order:
        moment = 0.0 if previous[task] < 0 else end_s[previous[task]]
        for place in range(queues.after_starts[task], queues.after_starts[task + 1]):
            moment = max(moment, end_s[queues.after[place]])
        start_s[task] = moment
        end_s[task] = moment + duration_s[task]
    return start_s, end_s


@njit(cache=True)
def events(queues, contends, slowed_by, slowdown, duration_s):
    """Start and end of each task where contending tasks of some streams slow others.

    At each moment all that ends then ends and all that can starts, and the victims of what changed
    are brought up to date, until nothing moves any more.
    """
    num_streams = len(slowdown)
    start_s = np.full(len(duration_s), np.inf)
    end_s = np.full(len(duration_s), np.inf)
    streams = _idle(queues, num_streams)
    now_s = 0.0
    while now_s < np.inf:
        moved = True
        while moved:
            moved = False
            for stream in range(num_streams):
                moved |= _end(streams, stream, now_s, end_s, contends)
                while _start(queues, streams, stream, now_s, start_s, end_s, contends, duration_s):
                    moved = True
                    _end(streams, stream, now_s, end_s, contends)
            for stream in range(num_streams):
                if slowdown[stream] >= 0 and streams.running[stream] >= 0:
                    moved |= _bring_up_to_date(
                        streams, stream, now_s, slowed_by[stream], slowdown[stream]
                    )
            streams.switched[:] = False
            streams.started[:] = False
        now_s = streams.finish_s.min()
    return start_s, end_s


@njit(cache=True)
def _idle(queues, num_streams):
    return _Streams(
        queues.queue_starts[:-1].copy(),
        np.full(num_streams, -1, np.int32),
        np.full(num_streams, np.inf),
        np.zeros(num_streams),
        np.zeros(num_streams),
        np.ones(num_streams),
        np.zeros(num_streams, np.bool_),
        np.zeros(num_streams, np.bool_),
        np.zeros(num_streams, np.bool_),
    )


@njit(cache=True)
def _ready(queues, task, end_s):
    for place in range(queues.after_starts[task], queues.after_starts[task + 1]):
        if end_s[queues.after[place]] == np.inf:
            return False
    return True


@njit(cache=True)
def _end(streams, stream, now_s, end_s, contends):
    """End the stream's task if its time has come."""
    task = streams.running[stream]
    if task < 0 or streams.finish_s[stream] > now_s:
        return False
    end_s[task] = now_s
    streams.running[stream] = -1
    streams.finish_s[stream] = np.inf
    if contends[task]:
        streams.contending[stream] = False
        streams.switched[stream] = True
    return True


@njit(cache=True)
def _start(queues, streams, stream, now_s, start_s, end_s, contends, duration_s):
    """Start the stream's next task if it is idle and the task need not wait."""
    place = streams.head[stream]
    if streams.running[stream] >= 0 or place == queues.queue_starts[stream + 1]:
        return False
    task = queues.queue[place]
    if not _ready(queues, task, end_s):
        return False
    streams.head[stream] += 1
    streams.running[stream] = task
    streams.started[stream] = True
    start_s[task] = now_s
    streams.begun_s[stream] = now_s
    streams.left_s[stream] = duration_s[task]
    streams.stretch[stream] = 1.0
    streams.finish_s[stream] = now_s + duration_s[task]
    if contends[task]:
        streams.contending[stream] = True
        streams.switched[stream] = True
    return True


@njit(cache=True)
def _bring_up_to_date(streams, stream, now_s, aggressors, slowdown):
    """Let a victim go on at the speed that its aggressors leave; True where it ends now."""
    news = streams.started[stream]
    contended = False
    for other in range(len(aggressors)):
        if aggressors[other]:
            news |= streams.switched[other]
            contended |= streams.contending[other]
    if not news:
        return False
    streams.left_s[stream] -= (now_s - streams.begun_s[stream]) / streams.stretch[stream]
    streams.begun_s[stream] = now_s
    streams.stretch[stream] = 1.0 + slowdown if contended else 1.0
    left_s = streams.left_s[stream]
    streams.finish_s[stream] = now_s + max(left_s, 0.0) * streams.stretch[stream]
    return streams.finish_s[stream] <= now_s
