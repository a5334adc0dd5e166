"""Iterations that follow each other without a flush of the pipeline (PipeDream-2BW).

The program of one iteration is repeated several times. On each stage, the first forward passes of
an iteration alternate with the last backward passes of the one before. After them comes the forward
pass of the next pair, then the optimizer step of the iteration before: its reduction can overlap
this pass, and the next backward pass needs the gradient buffer. Other streams run one iteration
after the other.

After some iterations, each begins equally long after the one before on every stage: that is the
time of an iteration, and the times of its tasks repeat.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from simtrain.engine import TaskGraph, Timeline, simulate
from simtrain.engine.compiled import Floats, Ints
from simtrain.engine.program import rows_of
from simtrain.iteration.programs.iteration_tasks import IterationTasks
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.schedules import KINDS, Schedule

_FORWARD = KINDS.index("F")
_FEWEST, _MOST = 4, 64
"""Iterations that are simulated: four times as many, until they repeat."""
_TOLERANCE = 1e-9
"""Relative difference of periods that count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedTasks:
    """The tasks of several iterations.

    Args:
        tasks: all of them.
        number: [iterations, tasks], the number of each task of each iteration.
    """

    tasks: IterationTasks
    number: Ints


def steady_iteration(seconds: IterationSeconds, tasks: IterationTasks) -> tuple[Timeline, float]:
    """Return the timeline of an iteration between others, and the time from one to the next.

    The timeline starts with the first task of the iteration. Its last backward passes run beside
    the first forward passes of the next iteration, which it does not contain.
    """
    schedule, engine = seconds.structure.pass_order.actions, seconds.machine.engine
    starts, queue = tasks.graph.queue
    firsts = queue[starts[: tasks.num_stages]]
    copies = _FEWEST
    while True:
        repeated = repeat(tasks, schedule, copies)
        whole = simulate(repeated.tasks.program(seconds), engine)
        begins_s = whole.start_s[repeated.number[:, firsts]]
        periods_s = np.diff(begins_s, axis=0)
        repeats = np.ptp(periods_s[-2:]) <= _TOLERANCE * periods_s[-1].max()
        if repeats or copies >= _MOST:
            break
        copies *= 4
    # The last iteration has no other one after it.
    shown = repeated.number[-2]
    base_s = begins_s[-2].min()
    start_s, end_s = whole.start_s[shown] - base_s, whole.end_s[shown] - base_s
    period_s = float(periods_s[-1].max()) if repeats else _mean_period_s(begins_s)
    return Timeline(tasks.program(seconds), start_s, end_s), period_s


def _mean_period_s(begins_s: Floats) -> float:
    """Return the mean period of the second half of the iterations, on the slowest stage."""
    half = len(begins_s) // 2
    return float((begins_s[-1] - begins_s[half]).max() / (len(begins_s) - 1 - half))


def repeat(tasks: IterationTasks, schedule: Schedule, copies: int) -> RepeatedTasks:
    """Return the tasks of several iterations without a flush between them."""
    graph, num_tasks = tasks.graph, tasks.graph.num_tasks
    starts, queue = graph.queue
    orders: list[Ints] = []
    for stream, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        own_tasks = queue[start:end]
        if stream < tasks.num_stages:
            orders.append(_stage_order(tasks, schedule, stream, own_tasks, copies))
        else:
            orders += [copy * num_tasks + own_tasks for copy in range(copies)]
    # Tasks of all iterations, stream by stream, in the order in which they run.
    order = np.concatenate(orders)
    number = np.empty(copies * num_tasks, np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    waiting = np.repeat(np.arange(num_tasks), np.diff(graph.after_starts))
    edges = [
        number[copy * num_tasks + ends] for ends in (waiting, graph.after) for copy in range(copies)
    ]
    rows = rows_of(len(order), np.concatenate(edges[:copies]), np.concatenate(edges[copies:]))
    part_of = tasks.part_of[order % num_tasks]
    stream_of = graph.stream_of[order % num_tasks]
    repeated = TaskGraph(graph.streams, stream_of, *rows, graph.kinds, part_of)
    return RepeatedTasks(
        replace(tasks, graph=repeated, part_of=part_of), number.reshape(copies, num_tasks)
    )


def _stage_order(
    tasks: IterationTasks, schedule: Schedule, stage: int, own_tasks: Ints, copies: int
) -> Ints:
    """Return a stage's tasks of all iterations in order; task i of iteration c is c * tasks + i."""
    actions = slice(*schedule.rank_starts[stage : stage + 2])
    ends = np.searchsorted(own_tasks, tasks.last[actions], side="right")
    # The tasks of each action, and those of the optimizer step.
    *passes, step = np.split(own_tasks, ends)
    num_warmup = int(np.argmax(schedule.kind[actions] != _FORWARD)) - 1
    end = len(passes) - num_warmup
    head, (forward, *steady), tail = passes[:num_warmup], passes[num_warmup:end], passes[end:]
    order: list[Ints] = []
    for first in range(0, copies * tasks.graph.num_tasks, tasks.graph.num_tasks):
        before = first - tasks.graph.num_tasks
        if not first:
            order += head
        else:
            for of_next, of_last in zip(head, tail, strict=True):
                order += [of_next + first, of_last + before]
        order.append(forward + first)
        if first:
            order.append(step + before)
        order += [of_pass + first for of_pass in steady]
    order += [of_pass + first for of_pass in (*tail, step)]
    return np.concatenate(order)
