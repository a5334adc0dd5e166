"""What the engine runs: tasks, the streams they queue on, what they wait for and what they share.

A program is a graph of tasks and their durations, all of them arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simtrain.engine.compiled import Floats, Ints, run_loop, runs_compiled
from simtrain.engine.longest_path import find_order
from simtrain.engine.sharing import Link, LinkLoads
from simtrain.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class Task:
    """Something that takes `duration_s` seconds of one stream.

    `after` holds the indices, in the program, of the tasks that must have ended before this one
    starts. `kind` is a label for reports. `loads` says what the task takes of each link while it
    runs at full speed; `weight` is its claim to a link that is full (see `sharing`).
    """

    name: str
    stream: str
    duration_s: float
    after: tuple[int, ...] = ()
    kind: str = ""
    loads: tuple[tuple[Link, float], ...] = ()
    weight: float = 1.0


def _no_name(index: int) -> str:
    return f"task {index}"


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks on streams and what they wait for: a program without its durations.

    A stream takes its tasks in the order of their indices, one at a time.

    Args:
        streams: names of the streams, some of which may be without tasks.
        stream_of: [tasks], the stream of each task by its place in `streams`.
        after_starts, after: task i waits for `after[after_starts[i]:after_starts[i + 1]]`.
        kinds, kind_of: task i is of the kind `kinds[kind_of[i]]`.
        name_of: the name of a task, made when it is read.

    Raises:
        InputError: a task waits for one that there is not, or for itself (E502).
    """

    streams: tuple[str, ...]
    stream_of: Ints
    after_starts: Ints
    after: Ints
    kinds: tuple[str, ...] = ("",)
    kind_of: Any = 0
    name_of: Callable[[int], str] = _no_name

    def __post_init__(self) -> None:
        waiting = np.repeat(np.arange(self.num_tasks), np.diff(self.after_starts))
        bad = (self.after < 0) | (self.after >= self.num_tasks) | (self.after == waiting)
        if bad.any():
            pairs = zip(waiting[bad].tolist(), self.after[bad].tolist(), strict=True)
            raise InputError([self._bad_wait(index, other) for index, other in pairs])

    def __repr__(self) -> str:
        num_streams = len(self.used_streams)
        return f"<TaskGraph: {self.num_tasks:,} tasks on {num_streams:,} streams>"

    @property
    def num_tasks(self) -> int:
        """Tasks of the program."""
        return len(self.stream_of)

    @property
    def used_streams(self) -> list[int]:
        """Streams that have tasks, in the order of their first tasks."""
        return [*dict.fromkeys(self.stream_of.tolist())]

    @cached_property
    def queue(self) -> tuple[Ints, Ints]:
        """`starts, queue`: the tasks of stream s are `queue[starts[s]:starts[s + 1]]`, in order."""
        return rows_of(len(self.streams), self.stream_of, np.arange(self.num_tasks))

    @cached_property
    def previous(self) -> Ints:
        """The task before each task on its stream; -1 for none."""
        previous, queue = np.full(self.num_tasks, -1, np.int32), self.queue[1]
        same = np.diff(self.stream_of[queue]) == 0
        previous[queue[1:][same]] = queue[:-1][same]
        return previous

    @cached_property
    def order(self) -> Ints:
        """Tasks, each after all that it waits for; those of a deadlock are left out."""
        order = np.empty(self.num_tasks, np.int32)
        arrays = *self.queue, self.after_starts, self.after
        is_compiled = runs_compiled(self.num_tasks)
        return order[: run_loop(find_order, arrays, (order,), is_compiled=is_compiled)].copy()

    def queues(self) -> dict[str, list[int]]:
        """Stream to the indices of its tasks, streams in the order of their first tasks."""
        starts, queue = self.queue
        tasks = np.split(queue, starts[1:-1])
        return {self.streams[number]: tasks[number].tolist() for number in self.used_streams}

    def stream(self, index: int) -> str:
        """The name of a task's stream."""
        return self.streams[int(self.stream_of[index])]

    def kind(self, index: int) -> str:
        """The kind of a task."""
        return self.kinds[int(self.kind_of[index])]

    def waits(self, index: int) -> list[int]:
        """The tasks that a task waits for, beside the one before it on its stream."""
        waits: list[int] = self.after[slice(*self.after_starts[index : index + 2])].tolist()
        return waits

    def _bad_wait(self, index: int, other: int) -> Problem:
        reason = "a task cannot wait for itself"
        if other != index:
            reason = f"the program's tasks are 0 to {self.num_tasks - 1}"
        message = f"task {self.name_of(index)!r} (number {index}) waits for task number {other}"
        return Problem(code="E502", message=message, reason=reason)


@dataclass(frozen=True, eq=False)
class Program:
    """A graph of tasks, and how long each takes alone.

    Args:
        duration_s: [tasks], or [draws, tasks].
        shares: what tasks take of links; None if they take nothing.

    Raises:
        InputError: a duration is not a finite number >= 0 (E501).
    """

    graph: TaskGraph
    duration_s: Floats
    link_loads: LinkLoads | None = None

    def __post_init__(self) -> None:
        seconds = self.duration_s
        if not (seconds.min(initial=0.0) >= 0 and seconds.max(initial=0.0) < np.inf):
            bad = np.argwhere(~((seconds >= 0) & (seconds < np.inf)))
            raise InputError([self._bad_duration(tuple(place)) for place in bad.tolist()])

    def __repr__(self) -> str:
        return repr(self.graph).replace("TaskGraph", "Program")

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Program:
        """A program of tasks that are written one by one.

        Raises:
            InputError: as `TaskGraph` and `Program` do, and for a load or a weight that is none
                (E503).
        """
        tasks = tuple(tasks)
        graph = TaskGraph(
            *_numbered([task.stream for task in tasks]),
            starts_of([len(task.after) for task in tasks]),
            np.array([*itertools.chain(*(task.after for task in tasks))], np.int32),
            *_numbered([task.kind for task in tasks]),
            [task.name for task in tasks].__getitem__,
        )
        duration_s = np.array([task.duration_s for task in tasks], np.float64)
        weights = [task.weight for task in tasks]
        return cls(graph, duration_s, LinkLoads.of([task.loads for task in tasks], weights))

    @property
    def num_tasks(self) -> int:
        """Tasks of the program."""
        return self.graph.num_tasks

    @property
    def draws_s(self) -> Floats:
        """The durations with an axis of draws, of which there may be one."""
        return np.atleast_2d(self.duration_s)

    def _bad_duration(self, place: tuple[int, ...]) -> Problem:
        *draw, index = place
        name, stream = self.graph.name_of(index), self.graph.stream(index)
        of_draw = f" in draw {draw[0]}" if draw else ""
        message = f"task {name!r} on {stream!r} lasts {float(self.duration_s[place])!r} s{of_draw}"
        reason = "a duration is a finite number of seconds, zero or more"
        return Problem("E501", message, reason=reason)


def starts_of(counts: Any) -> Ints:
    """Where each of some consecutive rows begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def rows_of(num_rows: int, row_of: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Where each row starts, and the values row after row, those of a row in the order given."""
    by_row = np.argsort(row_of, kind="stable")
    return starts_of(np.bincount(row_of, minlength=num_rows)), values[by_row].astype(np.int32)


def _numbered(names: list[str]) -> tuple[tuple[str, ...], Ints]:
    """The different names, and for each name its place among them."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return tuple(places), np.array([places[name] for name in names], np.int32)
