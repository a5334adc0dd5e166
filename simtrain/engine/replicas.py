"""Runs a task graph on several replicas at once, each with its own durations.

Each replica runs all tasks on streams of its own. Some tasks are joint: groups of neighbouring
replicas start such a task together, when the last of the group is ready, and end it together, after
the longest of their durations. A collective over data parallelism is such a task.

One pass over the tasks in topological order computes the longest paths of all draws and replicas: a
step takes arrays [draws, replicas].
"""

from __future__ import annotations

import numpy as np

from simtrain.base.values import dataclass
from simtrain.engine.compiled import Floats, Ints
from simtrain.engine.program import TaskGraph
from simtrain.engine.run import DeadlockError, find_waits


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

    def alone(self) -> ReplicaProgram:
        return ReplicaProgram(self.graph, np.ones_like(self.group_sizes), self.duration_s)


def run_replicas(program: ReplicaProgram) -> tuple[Floats, Floats]:
    """Return the starts and the ends of all tasks, [tasks, draws, replicas] each.

    They equal those of `simulate` for the tasks of every replica on streams of its own, to the last
    bit; so do its errors.
    """
    graph, size = program.graph, program.duration_s.shape
    if len(graph.order) < graph.num_tasks:
        is_unfinished = ~np.isin(np.arange(graph.num_tasks), graph.order)
        raise DeadlockError(tuple(find_waits(graph, is_unfinished)))
    start_s, end_s = np.zeros(size), np.zeros(size)
    starts, waits = graph.waits_in_order[0].tolist(), graph.order[graph.waits_in_order[1]].tolist()
    sizes = np.minimum(program.group_sizes, size[2]).tolist()
    for place, task in enumerate(graph.order.tolist()):
        begin_s, duration_s = start_s[task], program.duration_s[task]
        for other in waits[starts[place] : starts[place + 1]]:
            np.maximum(begin_s, end_s[other], out=begin_s)
        if sizes[task] > 1:
            _take_largest(begin_s, sizes[task])
            duration_s = duration_s.copy()
            _take_largest(duration_s, sizes[task])
        np.add(begin_s, duration_s, out=end_s[task])
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
