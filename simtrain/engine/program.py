"""Programs: tasks on streams, their dependencies, their durations and the links that they share.

A program is a task graph with durations, as arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from simtrain.base.values import dataclass
from simtrain.engine.compiled import Floats, Ints, run_loop, runs_compiled
from simtrain.engine.sharing import LinkLoads
from simtrain.errors import InputError, Problem

# Starts and ends of tasks that share no links: longest paths through the task graph.
#
# A task starts at the latest end of the task before it on its stream and of the tasks that it waits
# for (or at 0), and ends after its duration.


def find_order(
    queue_starts: Ints, queue: Ints, after_starts: Ints, after: Ints, order: Ints
) -> int:
    """Write the tasks to `order`, each after all tasks that it waits for; return their number.

    Args:
        queue_starts, queue, after_starts, after: as in `TaskGraph`.
        order: [tasks], the result. Tasks of a deadlock are missing.

    Streams take turns, so that neighbours in the order do not wait for each other's sums.
    """
    num_streams = len(queue_starts) - 1
    heads = [queue_starts[stream] for stream in range(num_streams)]
    is_done = [False] * len(queue)
    num_done = 0
    num_before = -1
    while num_before < num_done:
        num_before = num_done
        for stream in range(num_streams):
            if heads[stream] == queue_starts[stream + 1]:
                continue
            task = queue[heads[stream]]
            is_ready = True
            for place in range(after_starts[task], after_starts[task + 1]):
                is_ready = is_ready and is_done[after[place]]
            if is_ready:
                is_done[task] = True
                order[num_done] = task
                num_done += 1
                heads[stream] += 1
    return num_done


def find_longest_paths(
    wait_starts: Ints, waits: Ints, number_of: Ints, seconds: Floats, start_s: Floats, end_s: Floats
) -> None:
    """Write the start and end of each task, both in the order of `TaskGraph.order`.

    Args:
        wait_starts, waits: as in `TaskGraph.waits_in_order`.
        number_of: [tasks], in this order; a task lasts `seconds[number_of[i]]`.
        start_s, end_s: [tasks], the results.
    """
    number = 0
    for place in range(len(number_of)):
        moment = 0.0
        while number < wait_starts[place + 1]:
            moment = max(moment, end_s[waits[number]])
            number += 1
        start_s[place] = moment
        end_s[place] = moment + seconds[number_of[place]]


@dataclass(frozen=True, slots=True)
class Task:
    """A task on one stream; it starts after the tasks with the indices `after`."""

    name: str
    stream: str
    duration_s: float
    after: tuple[int, ...] = ()
    kind: str = ""


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks on streams and their dependencies: a program without durations.

    A stream runs its tasks one at a time, in the order of their indices.

    Args:
        streams: names of the streams; a stream may have no tasks.
        stream_of: [tasks], the place of each task's stream in `streams`.
        after_starts, after: task i waits for `after[after_starts[i]:after_starts[i + 1]]`.
        kinds, kind_of: task i has the kind `kinds[kind_of[i]]`.
        name_of: returns the name of a task; names are made only when needed.

    Raises:
        InputError: a task waits for a task that does not exist, or for itself (E502).
    """

    streams: tuple[str, ...]
    stream_of: Ints
    after_starts: Ints
    after: Ints
    kinds: tuple[str, ...] = ("",)
    kind_of: Any = 0
    name_of: Callable[[int], str] = "task {}".format

    def __post_init__(self) -> None:
        waiting = self.waiting
        bad = (self.after < 0) | (self.after >= self.num_tasks) | (self.after == waiting)
        if bad.any():
            pairs = zip(waiting[bad].tolist(), self.after[bad].tolist(), strict=True)
            raise InputError([self._bad_wait(index, other) for index, other in pairs])

    def __repr__(self) -> str:
        return f"<TaskGraph: {self.num_tasks:,} tasks on {len(self.used_streams):,} streams>"

    @property
    def num_tasks(self) -> int:
        return len(self.stream_of)

    @property
    def used_streams(self) -> list[int]:
        return [*dict.fromkeys(self.stream_of.tolist())]

    @property
    def waiting(self) -> Ints:
        """The task that waits for each task of `after`."""
        return np.repeat(np.arange(self.num_tasks, dtype=np.int32), self.num_waits)

    @cached_property
    def num_waits(self) -> Ints:
        return np.diff(self.after_starts)

    @cached_property
    def queue(self) -> tuple[Ints, Ints]:
        """`starts, queue`: the tasks of stream s are `queue[starts[s]:starts[s + 1]]`, in order."""
        return rows_of(len(self.streams), self.stream_of, np.arange(self.num_tasks))

    @cached_property
    def previous(self) -> Ints:
        """The task before each task on its stream; -1 for none."""
        starts, queue = self.queue
        previous = np.empty(self.num_tasks, np.int32)
        previous[queue[1:]] = queue[:-1]
        previous[queue[starts[:-1][np.diff(starts) > 0]]] = -1
        return previous

    @cached_property
    def followers(self) -> tuple[Ints, Ints]:
        """`starts, followers`: `followers[starts[i]:starts[i + 1]]` wait for task i."""
        return rows_of(self.num_tasks, self.after, self.waiting)

    @cached_property
    def order(self) -> Ints:
        """Tasks, each after all tasks that it waits for, without tasks of a deadlock."""
        order = np.empty(self.num_tasks, np.int32)
        arrays = *self.queue, self.after_starts, self.after
        num_ready = run_loop(find_order, arrays, (order,), is_compiled=runs_compiled())
        return order[:num_ready].copy()

    @cached_property
    def place(self) -> Ints:
        """[tasks], the place of each in `order`; those of a deadlock have the place after it."""
        place = np.full(self.num_tasks, len(self.order))
        place[self.order] = np.arange(len(self.order))
        return place

    @cached_property
    def is_in_order(self) -> bool:
        return np.array_equal(self.order, np.arange(self.num_tasks))

    @cached_property
    def kinds_in_order(self) -> Ints:
        return np.array(self.kind_of[self.order], np.int32)

    @cached_property
    def waits_in_order(self) -> tuple[Ints, Ints]:
        """`starts, waits`: `order[i]` waits for `order[j]`, j in `waits[starts[i]:starts[i + 1]]`.

        The first is the task before it on its stream, if there is one.
        """
        follows = np.flatnonzero(self.previous >= 0)
        waiting = np.concatenate([follows, self.waiting])
        awaited = np.concatenate([self.previous[follows], self.after])
        return rows_of(len(self.order) + 1, self.place[waiting], self.place[awaited])

    def queues(self) -> dict[str, list[int]]:
        starts, queue = self.queue
        tasks = np.split(queue, starts[1:-1])
        return {self.streams[number]: tasks[number].tolist() for number in self.used_streams}

    def stream(self, index: int) -> str:
        return self.streams[int(self.stream_of[index])]

    def waits(self, index: int) -> list[int]:
        return [*map(int, self.after[slice(*self.after_starts[index : index + 2])])]

    def _bad_wait(self, index: int, other: int) -> Problem:
        reason = "a task cannot wait for itself"
        if other != index:
            reason = f"the program's tasks are 0 to {self.num_tasks - 1}"
        message = f"task {self.name_of(index)!r} (number {index}) waits for task number {other}"
        return Problem(code="E502", message=message, reason=reason)


@dataclass(frozen=True, eq=False)
class Program:
    """A task graph with the durations of its tasks.

    Args:
        graph: the tasks.
        seconds: [tasks], time at full speed, or [kinds] if tasks `of_kinds` take equal time.
        link_loads: loads of tasks on links; None without shared links.

    Raises:
        InputError: a duration is not a finite number >= 0 (E501).
    """

    graph: TaskGraph
    seconds: Floats
    link_loads: LinkLoads | None = None
    of_kinds: bool = False

    def __post_init__(self) -> None:
        seconds = self.seconds
        if not (seconds.min(initial=0.0) >= 0 and seconds.max(initial=0.0) < np.inf):
            bad = np.flatnonzero(~((self.duration_s >= 0) & (self.duration_s < np.inf)))
            raise InputError([*map(self._bad_duration, bad.tolist())])

    @cached_property
    def duration_s(self) -> Floats:
        return self.seconds.take(self.graph.kind_of) if self.of_kinds else self.seconds

    def __repr__(self) -> str:
        return repr(self.graph).replace("TaskGraph", "Program")

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Program:
        """Build a program from single tasks; errors are those of `TaskGraph` and `Program`."""
        tasks = tuple(tasks)
        graph = TaskGraph(
            *_numbered([task.stream for task in tasks]),
            starts_of([len(task.after) for task in tasks]),
            np.array([*itertools.chain(*(task.after for task in tasks))], np.int32),
            *_numbered([task.kind for task in tasks]),
            [task.name for task in tasks].__getitem__,
        )
        duration_s = np.array([task.duration_s for task in tasks], np.float64)
        return cls(graph, duration_s)

    @property
    def num_tasks(self) -> int:
        return self.graph.num_tasks

    def _bad_duration(self, index: int) -> Problem:
        name, stream = self.graph.name_of(index), self.graph.stream(index)
        message = f"task {name!r} on {stream!r} lasts {float(self.duration_s[index])!r} s"
        reason = "a duration is a finite number of seconds, zero or more"
        return Problem("E501", message, reason=reason)


def starts_of(counts: Any) -> Ints:
    """Return the start of each row of a ragged array, and the end of the last row."""
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def rows_of(num_rows: int, row_of: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Group values by row: return the starts of the rows, and the values in row order (stable)."""
    by_row = np.argsort(row_of, kind="stable")
    starts = starts_of(np.bincount(row_of, minlength=num_rows))
    return starts, values[by_row].astype(np.int32, copy=False)


def _numbered(names: list[str]) -> tuple[tuple[str, ...], Ints]:
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return tuple(places), np.array([places[name] for name in names], np.int32)
