"""Runs a task graph on several replicas at once, each with its own durations.

Each replica runs all tasks on streams of its own. Some tasks are joint: groups of neighbouring
replicas start such a task together, when the last of the group is ready, and end it together, after
the longest of their durations. A collective over data parallelism is such a task.

One pass over the tasks in topological order computes the longest paths of all draws and replicas: a
step takes arrays [draws, replicas].
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from simtrain.engine.compiled import Floats, Ints
from simtrain.engine.program import Program, TaskGraph, rows_of
from simtrain.engine.run import DeadlockError, Engine, find_waits, simulate


@dataclass(frozen=True, eq=False)
class ReplicaProgram:
    """A task graph that several replicas run.

    Args:
        graph: the tasks of one replica.
        group_sizes: [tasks], number of neighbouring replicas that run the task together; 1 for a
            task that each replica runs by itself.
        duration_s: [tasks, draws, replicas], time of each task.
    """

    graph: TaskGraph
    group_sizes: Ints
    duration_s: Floats

    @property
    def num_replicas(self) -> int:
        return int(self.duration_s.shape[2])

    def alone(self) -> ReplicaProgram:
        return ReplicaProgram(self.graph, np.ones_like(self.group_sizes), self.duration_s)


def run_replicas(program: ReplicaProgram, engine: Engine = "auto") -> tuple[Floats, Floats]:
    """Return the starts and the ends of all tasks, [tasks, draws, replicas] each.

    `simpy` simulates the expanded program (`expanded`) draw by draw, as the reference; the other
    engines run the pass over arrays. All give the same times to the last bit.

    Raises:
        DeadlockError: some tasks can never start.
    """
    if engine == "simpy":
        return _simulated(program)
    graph, size = program.graph, program.duration_s.shape
    if len(graph.order) < graph.num_tasks:
        is_unfinished = np.ones(graph.num_tasks, np.bool_)
        is_unfinished[graph.order] = False
        raise DeadlockError(tuple(find_waits(graph, is_unfinished)))
    start_s, end_s = np.zeros(size), np.zeros(size)
    previous, starts = graph.previous.tolist(), graph.after_starts.tolist()
    after, sizes = graph.after.tolist(), np.minimum(program.group_sizes, size[2]).tolist()
    for task in graph.order.tolist():
        begin_s, duration_s = start_s[task], program.duration_s[task]
        if previous[task] >= 0:
            np.copyto(begin_s, end_s[previous[task]])
        for other in after[starts[task] : starts[task + 1]]:
            np.maximum(begin_s, end_s[other], out=begin_s)
        if sizes[task] > 1:
            _take_largest(begin_s, sizes[task])
            duration_s = duration_s.copy()
            _take_largest(duration_s, sizes[task])
        np.add(begin_s, duration_s, out=end_s[task])
    return start_s, end_s


def expanded(program: ReplicaProgram, draw: int) -> Program:
    """Return one draw as a program with the tasks of every replica on streams of its own.

    A joint task of a replica waits for all that the joint task of any replica of its group waits
    for. Task t of replica r has the number t · replicas + r.
    """
    graph, replicas = program.graph, program.num_replicas
    duration_s = program.duration_s[:, draw].copy()
    waiting = np.repeat(np.arange(graph.num_tasks), np.diff(graph.after_starts))
    before = np.flatnonzero(graph.previous >= 0)
    pairs = [
        *zip(waiting.tolist(), graph.after.tolist(), strict=True),
        *zip(before.tolist(), graph.previous[before].tolist(), strict=True),
    ]
    groups = [
        [*range(first, min(first + size, replicas))]
        for size in program.group_sizes.tolist()
        for first in range(0, replicas, size)
    ]
    of_task: dict[int, list[list[int]]] = {}
    numbers = np.repeat(np.arange(graph.num_tasks), -(-replicas // program.group_sizes))
    for task, group in zip(numbers.tolist(), groups, strict=True):
        of_task.setdefault(task, []).append(group)
        duration_s[task, group] = duration_s[task, group].max()
    waits = [
        (task * replicas + member, other * replicas + awaited)
        for task, other in pairs
        for group in of_task[task]
        for member, awaited in itertools.product(group, group)
    ]
    columns = np.array(waits, np.int32).reshape(-1, 2)
    streams = [f"{name} of replica {r}" for name in graph.streams for r in range(replicas)]
    stream_of = (graph.stream_of[:, None] * replicas + np.arange(replicas)).ravel()
    every = TaskGraph(
        tuple(streams),
        stream_of.astype(np.int32),
        *rows_of(graph.num_tasks * replicas, columns[:, 0], columns[:, 1]),
    )
    return Program(every, duration_s.ravel())


def _simulated(program: ReplicaProgram) -> tuple[Floats, Floats]:
    shape = program.duration_s.shape
    start_s, end_s = np.empty(shape), np.empty(shape)
    for draw in range(shape[1]):
        timeline = simulate(expanded(program, draw), "simpy")
        start_s[:, draw] = timeline.start_s.reshape(shape[0], shape[2])
        end_s[:, draw] = timeline.end_s.reshape(shape[0], shape[2])
    return start_s, end_s


def _take_largest(values: Floats, size: int) -> None:
    """Give all replicas of each group the largest value of the group; [draws, replicas]."""
    replicas = values.shape[1]
    if size >= replicas:
        values[:] = values.max(axis=1, keepdims=True)
        return
    for first in range(0, replicas, size):
        group = values[:, first : first + size]
        group[:] = group.max(axis=1, keepdims=True)
