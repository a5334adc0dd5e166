"""Exposed time of tasks: the time for which streams of higher priority are idle."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simtrain.engine.compiled import Floats
from simtrain.engine.timeline import Timeline


def exposed_seconds(
    timeline: Timeline, streams: Iterable[int], window_s: tuple[float, float] | None = None
) -> Floats:
    """Return [tasks], the time for which each task runs while all earlier `streams` are idle.

    Only time in the window counts, by default all of it. It includes all tasks of the first stream.

    A task of the first stream is always exposed. A task of a stream that is not listed has 0 s.
    `idle_seconds` computes the sums of these times.
    """
    start_s, end_s = timeline.start_s, timeline.end_s
    exposed_s, busy = np.zeros(len(start_s)), np.zeros((0, 2))
    before_s, after_s = window_s or (0.0, timeline.makespan_s)
    outside = np.array([(0.0, before_s), (after_s, timeline.makespan_s)])
    for place, stream in enumerate(streams):
        tasks = np.flatnonzero(timeline.program.graph.stream_of == stream)
        intervals = np.stack([start_s[tasks], end_s[tasks]], axis=1)
        hidden_s = np.diff(busy_before(intervals, busy), axis=1)[:, 0]
        exposed_s[tasks] = (intervals[:, 1] - intervals[:, 0] - hidden_s).clip(0.0)
        more = [] if place else [outside[outside[:, 0] < outside[:, 1]]]
        busy = union_of(np.concatenate([busy, intervals, *more]))
    return exposed_s


def busy_before(moments_s: Floats, busy: Floats) -> Floats:
    """Return the seconds before each moment that lie in sorted, disjoint intervals [n, 2]."""
    if not len(busy):
        return np.zeros_like(moments_s)
    so_far_s = np.cumsum(busy[:, 1] - busy[:, 0])
    values = np.stack([np.append(0.0, so_far_s[:-1]), so_far_s], axis=1)
    busy_s: Floats = np.interp(moments_s, busy.ravel(), values.ravel())
    return busy_s


def union_of(intervals: Floats) -> Floats:
    """Return the union of intervals [n, 2], as sorted and disjoint intervals."""
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    first = np.append(True, ordered[1:, 0] > ends[:-1])[: len(ordered)]
    last = np.append(first[1:], True)[: len(ordered)]
    return np.stack([ordered[first, 0], ends[last]], axis=1)
