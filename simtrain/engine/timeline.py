"""The result of a simulation: start and end of each task, exposed time and idle time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from simtrain.base.values import dataclass
from simtrain.engine.compiled import Floats, Ints
from simtrain.engine.program import Program


@dataclass(frozen=True, slots=True)
class Span:
    """A task with its start and end, in seconds from the start of the program."""

    name: str
    stream: str
    kind: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, eq=False)
class Timeline:
    """[2, tasks], starts and ends: by index or, if `in_order`, in the order of their graph."""

    program: Program
    times_s: Floats
    in_order: bool = False

    def __repr__(self) -> str:
        return f"<Timeline: {self.program!r}, {self.makespan_s:.4g} s>"

    @cached_property
    def start_s(self) -> Floats:
        return self._by_index(self.times_s[0])

    @cached_property
    def end_s(self) -> Floats:
        return self._by_index(self.times_s[1])

    @cached_property
    def makespan_s(self) -> float:
        """End of the last task; 0 for a program without tasks."""
        return float(self.times_s[1].max(initial=0.0))

    def _by_index(self, times_s: Floats) -> Floats:
        return times_s.take(self.program.graph.place) if self.in_order else times_s

    def span(self, index: int) -> Span:
        graph, ends = self.program.graph, (float(self.start_s[index]), float(self.end_s[index]))
        kind = graph.kinds[int(graph.kind_of[index])]
        return Span(graph.name_of(index), graph.stream(index), kind, *ends)

    def spans(self) -> Iterator[Span]:
        return map(self.span, np.argsort(self.start_s, kind="stable").tolist())

    def critical_path(self) -> list[Span]:
        return [*map(self.span, self.critical_tasks())]

    def critical_tasks(self) -> list[int]:
        """Return tasks from 0 to the end of the last task, each of which starts when the last ends.

        If a task waits for several tasks with the same end, the path takes the one before it on its
        stream, or else the first in its list.
        """
        graph, path = self.program.graph, list[int]()
        task = int(np.argmax(self.end_s)) if graph.num_tasks else -1
        while task >= 0:
            path.append(task)
            others = int(graph.previous[task]), *graph.waits(task)
            before = [other for other in others if other >= 0]
            task = max(before, key=self.end_s.__getitem__, default=-1)
        return path[::-1]


# Exposed time of tasks: the time for which streams of higher priority are idle.


def exposed_seconds(timeline: Timeline, streams: Iterable[int]) -> Floats:
    """Return [tasks], the time for which each task runs while all earlier `streams` are idle.

    A task of the first stream is always exposed. A task of a stream that is not listed has 0 s.
    `idle_seconds` computes the sums of these times.
    """
    start_s, end_s = timeline.start_s, timeline.end_s
    exposed_s, busy = np.zeros(len(start_s)), np.zeros((0, 2))
    for stream in streams:
        tasks = np.flatnonzero(timeline.program.graph.stream_of == stream)
        intervals = np.stack([start_s[tasks], end_s[tasks]], axis=1)
        hidden_s = np.diff(busy_before(intervals, busy), axis=1)[:, 0]
        exposed_s[tasks] = (intervals[:, 1] - intervals[:, 0] - hidden_s).clip(0.0)
        busy = union_of(np.concatenate([busy, intervals]))
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


# Idle time of streams, by the other streams that run at the same time.


# Numba compiles this function, so its arrays are parameters: compiled code takes no dataclasses.
def idle_seconds(
    streams: Ints,
    others: Ints,
    category_of: Ints,
    queue_starts: Ints,
    queue: Ints,
    start_s: Floats,
    end_s: Floats,
    makespan_s: float,
) -> Floats:
    """Return [n, categories], the time for which streams are idle while others run.

    Args:
        streams: [n], the streams whose idle time is measured.
        others: [n, m], the streams that each of them may wait for, sorted by category. A short row
            is padded with the idle stream itself, which never runs in its own gaps.
        category_of: [n, m], the categories of `others`, from 0 to categories - 1.
        queue_starts, queue, start_s, end_s: as in `TaskGraph.queue` and `Timeline`.
        makespan_s: the end of the last gap.

    The loop walks through the gaps between the tasks of each stream. At each moment of a gap it
    charges the first category that runs a task, until the task ends or a task of an earlier
    category starts. It skips tasks of zero duration.
    """
    seconds = np.zeros((len(streams), np.max(category_of) + 1))
    for row in range(len(streams)):
        heads = [queue_starts[other] for other in others[row]]
        now_s = 0.0
        own_end = queue_starts[streams[row] + 1]
        for place in range(queue_starts[streams[row]], own_end + 1):
            gap_end_s = start_s[queue[place]] if place < own_end else makespan_s
            if place < own_end and end_s[queue[place]] == gap_end_s:
                continue
            while now_s < gap_end_s:
                until_s = gap_end_s
                charged = -1
                for column in range(len(heads)):
                    head = heads[column]
                    end = queue_starts[others[row][column] + 1]
                    while head < end and end_s[queue[head]] <= max(now_s, start_s[queue[head]]):
                        head += 1
                    heads[column] = head
                    if head < end:
                        if start_s[queue[head]] <= now_s:
                            until_s = min(until_s, end_s[queue[head]])
                            charged = category_of[row][column]
                            break
                        until_s = min(until_s, start_s[queue[head]])
                if charged >= 0:
                    seconds[row, charged] += until_s - now_s
                now_s = until_s
            if place < own_end:
                now_s = end_s[queue[place]]
    return seconds
