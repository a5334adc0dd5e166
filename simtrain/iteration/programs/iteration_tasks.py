"""The tasks of an iteration, their names, and the program that they are with durations."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import LinkLoads, Program, TaskGraph, Timeline, find_idle_seconds, simulate
from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.engine.program import rows_of, starts_of
from simtrain.iteration.programs.parts import (
    BucketPart,
    HostUpdatePart,
    IterationPart,
    OffloadPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.schedules import KINDS, Messages, Schedule
from simtrain.schedules.stage_placement import ring_neighbour

# The streams of an iteration: groups with one stream per stage, and two that all stages share.
#
# A stage computes on one stream and has a link to either neighbour on the ring of stages. Messages
# are on the link to their receiver, in the order in which the stage sends them. Copies to the host
# and back have a stream each, because PCIe and NVLink-C2C carry both directions at full speed. An
# update of the host beside the passes has one for Adam, and one each for reads and writes of NVMe.

COMPUTE, TO_NEXT, TO_PREVIOUS, BUCKETS, TO_HOST, FROM_HOST = range(6)
HOST, NVME_READS, NVME_WRITES, NUM_GROUPS = range(6, 10)
"""Groups of one stream per stage. Stream `group * num_stages + stage` is that of a stage."""
LINK_STEPS = np.array([0, 1, -1, 0, 0, 0, 0, 0, 0], np.int32)
"""[groups], step from the stage of a stream to the stage that receives its messages."""

SHARED = EMBEDDING, MODEL = "embedding", "model"
"""Streams with collectives over several stages, after the groups."""


def stream_names(num_stages: int) -> tuple[str, ...]:
    """Return the names of all streams."""
    return (
        *stage_streams(num_stages),
        *link_streams(num_stages, 1),
        *link_streams(num_stages, -1),
        *(f"data {stage}" for stage in range(num_stages)),
        *(f"to host {stage}" for stage in range(num_stages)),
        *(f"from host {stage}" for stage in range(num_stages)),
        *(f"host {stage}" for stage in range(num_stages)),
        *(f"NVMe reads {stage}" for stage in range(num_stages)),
        *(f"NVMe writes {stage}" for stage in range(num_stages)),
        *SHARED,
    )


def stage_streams(num_stages: int) -> list[str]:
    """Return the names of the stages' compute streams."""
    return [f"stage {stage}" for stage in range(num_stages)]


def link_streams(num_stages: int, step: int) -> list[str]:
    """Return the names of the links from each stage to the next (step 1) or previous one (-1).

    The wrap-around is a separate link, even between two stages: Megatron-LM gives it another
    communicator.
    """
    ends = [(stage, ring_neighbour(stage, step, num_stages)) for stage in range(num_stages)]
    return [f"{'link' if end == stage + step else 'wrap'} {stage}->{end}" for stage, end in ends]


def links_of_messages(sender: Ints, step: Ints, num_stages: int) -> Ints:
    """Return [messages], the link on which each sender sends along the ring."""
    links: Ints = np.where(step > 0, TO_NEXT, TO_PREVIOUS) * num_stages + sender
    return links


_STEP_LABELS = {
    # Name and kind of the tasks of each field of an optimizer step.
    "average": ("gradient average", "optimizer"),
    "data_reduction": ("gradient reduction", "data"),
    "sequence_parallel": ("layer norm gradient all-reduce", "tensor"),
    "embedding": ("embedding gradient all-reduce", "embedding"),
    "to_host": ("gradients to host", "optimizer"),
    "norm": ("gradient norm", "optimizer"),
    "norm_reduction": ("gradient norm all-reduce", "norm"),
    "update": ("Adam", "optimizer"),
    "parameter_gather": ("parameter all-gather", "parameter gather"),
    "weight_cast": ("weight casts", "optimizer"),
}

_UPDATE_LABELS = {
    "read": "optimizer states from NVMe",
    "adam": "Adam on the host",
    "write": "states to NVMe",
}


def label_of(part: IterationPart) -> tuple[str, str]:
    """Return the name and the kind of a part's tasks; the name contains an action or a message."""
    match part:
        case TransferPart(num_states=0):
            return "norm of the stages so far", "transfer"
        case TransferPart():
            return "{message}", "transfer"
        case ReceiveGatherPart():
            return "gather {message}", "receive gather"
        case SynchronizationPart():
            return "synchronize", "synchronize"
        case PassPart(kind="R"):
            return _STEP_LABELS["data_reduction"]
        case PassPart(kind="D"):
            return "deferred weight gradients", "backward"
        case PassPart(kind=kind, beside=None):
            return "{action}", "forward" if kind == "F" else "backward"
        case PassPart():
            return "{action}", "merged"
        case BucketPart(gathers=gathers):
            return f"{'parameters' if gathers else 'gradients'} of {{action}}", "data bucket"
        case OffloadPart(to_host=to_host):
            return f"{{action}} {'to' if to_host else 'from'} host", "host copy"
        case OptimizerPart(name=name):
            return _STEP_LABELS[name]
        case HostUpdatePart(kind=kind):
            return _UPDATE_LABELS[kind], "host update"


@dataclass(frozen=True, slots=True, eq=False)
class TaskNames:
    """Makes the names of tasks when they are read.

    Args:
        messages: the messages of the schedule.
        names, part_of: task i has the name `names[part_of[i]]`.
        subject_of: [tasks], the message or action that the name contains; -1 for none.
    """

    messages: Messages
    names: tuple[str, ...]
    part_of: Ints
    subject_of: Ints

    def __call__(self, task: int) -> str:
        name, subject = self.names[int(self.part_of[task])], int(self.subject_of[task])
        if "{message}" in name:
            return name.format(message=self.messages[subject])
        if "{action}" in name:
            return name.format(action=self.messages.schedule.cell_at(subject))
        return name


@dataclass(frozen=True, eq=False)
class IterationTasks:
    """The tasks of an iteration.

    The compute streams of the stages are the first streams. Stream `data 3` has the buckets of
    stage 3, `to host 3` and `from host 3` its copies, `host 3`, `NVMe reads 3` and `NVMe writes 3`
    an update on its host; `embedding` and `model` have collectives over several stages.

    Args:
        graph: tasks, streams and dependencies.
        num_stages: pipeline stages.
        parts, part_of: task i belongs to part `parts[part_of[i]]`, which determines its duration.
        first, last: [actions], first and last task of each action of the schedule. Merged actions
            share one task.
        norms: [stages], first task of each stage's optimizer.
        reloads, reloaders: [copies], each copy from the host, and the pass or span that waits.
        holds_embedding: [stages], whether its gradient of the embedding is all-reduced.
    """

    graph: TaskGraph
    num_stages: int
    parts: tuple[IterationPart, ...]
    part_of: Ints
    first: Ints
    last: Ints
    norms: Ints
    holds_embedding: Flags
    reloads: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    reloaders: Ints = field(default_factory=lambda: np.zeros(0, np.int32))

    def program(self, seconds: IterationSeconds) -> Program:
        """Return the program, given the durations and the adapter loads of the parts.

        The ranks of a stage share their nodes' adapters, in each direction. Transfers only share
        them with buckets; without buckets there are no shared links.
        """
        duration_s, link_loads = np.array([*map(seconds.of_part, self.parts)]), None
        buckets = (part for part in self.parts if isinstance(part, BucketPart))
        if any(map(seconds.adapter_load, buckets)):
            load = np.array([*map(seconds.adapter_load, self.parts)])
            link_loads = self._link_loads(load[self.part_of])
        return Program(self.graph, duration_s[self.part_of], link_loads)

    def _link_loads(self, load: Floats) -> LinkLoads:
        """Return the loads on adapters: outgoing links of all stages, then incoming links."""
        loaded = np.flatnonzero(load > 0)
        group, sender = np.divmod(self.graph.stream_of[loaded], self.num_stages)
        receiver = ring_neighbour(sender, LINK_STEPS[group], self.num_stages)
        ends = [sender, self.num_stages + receiver]
        links = np.stack(ends, axis=1).astype(np.int32)
        weight = 1 / np.where(load > 0, load, 1.0)
        starts = starts_of(2 * (load > 0))
        capacity = np.ones(2 * self.num_stages)
        return LinkLoads(capacity, starts, links.ravel(), np.repeat(load[loaded], 2), weight)

    @cached_property
    def num_parts(self) -> NDArray[np.int64]:
        """[stages, parts], number of tasks of each part on the compute stream of each stage."""
        shape = self.num_stages, len(self.parts)
        of_stages = np.flatnonzero(self.graph.stream_of < self.num_stages)
        numbers = self.graph.stream_of[of_stages] * shape[1] + self.part_of[of_stages]
        return np.bincount(numbers, minlength=shape[0] * shape[1]).reshape(shape)

    @cached_property
    def waits(self) -> tuple[Ints, Ints, Ints]:
        """Compute streams, streams that each stage may wait for, and their categories.

        The others are in the order of `idle_seconds`: links to the next stage (out, in) and the
        previous one, embedding, buckets, norm, copies from the host; an update of the
        host, its reads of NVMe and its writes count as the norm does.
        """
        num_stages, stages = self.num_stages, np.arange(self.num_stages, dtype=np.int32)
        embedding = NUM_GROUPS * num_stages
        others = (
            TO_NEXT * num_stages + stages,
            TO_NEXT * num_stages + ring_neighbour(stages, -1, num_stages),
            TO_PREVIOUS * num_stages + stages,
            TO_PREVIOUS * num_stages + ring_neighbour(stages, 1, num_stages),
            np.where(self.holds_embedding, embedding, stages),
            BUCKETS * num_stages + stages,
            np.full_like(stages, embedding + SHARED.index(MODEL)),
            FROM_HOST * num_stages + stages,
            *(group * num_stages + stages for group in (HOST, NVME_READS, NVME_WRITES)),
        )
        categories = np.array([0, 0, 0, 0, 0, 1, 2, 3, 2, 2, 2], np.int32)
        part_of = np.tile(categories, (len(stages), 1))
        return stages, np.stack(others, axis=1).astype(np.int32), part_of


@dataclass(frozen=True, eq=False)
class IterationTimeline:
    """When each task of an iteration runs.

    Args:
        timeline: start and end of each task.
        tasks: the tasks by stage and action.
        seconds: the durations of their parts.
        period_s: time from one iteration to the next, if they run into each other.
    """

    timeline: Timeline
    tasks: IterationTasks = field(repr=False)
    seconds: IterationSeconds = field(repr=False)
    period_s: float | None = None

    def intervals_s(self, places: slice) -> tuple[Floats, Floats]:
        first, last = self.tasks.first[places], self.tasks.last[places]
        return self.timeline.start_s[first], self.timeline.end_s[last]

    def idle_seconds(self) -> Floats:
        """Return [stages, 4], idle seconds of each stage while other streams run.

        Columns: transfers, and collectives of embedding; the stage's buckets; the
        gradient norm; copies from the host that a pass waits for. If iterations run into each
        other, passes of other iterations run meanwhile: none counts.
        """
        if self.period_s is not None:
            return np.zeros((self.tasks.num_stages, 4))
        engine = self.seconds.machine.engine
        return find_idle_seconds(self.waiting, *self.tasks.waits, engine, self.windows_s)

    @cached_property
    def windows_s(self) -> tuple[Floats, Floats]:
        """[stages], when each stage begins and ends the iteration.

        Stages that wait for one gradient norm begin and end together. With post-validation, a stage
        goes on with the next iteration after its own optimizer step: its iteration begins with its
        first task. The next iteration can then run in the same order at the same distances, because
        every stage begins as long after the stages before it. Without a flush it begins the next
        iteration before it ends its own.
        """
        num_stages, timeline = self.tasks.num_stages, self.timeline
        if self.period_s is None and not self.seconds.structure.validates_after:
            return np.zeros(num_stages), np.full(num_stages, timeline.makespan_s)
        starts, queue = timeline.program.graph.queue
        first, last = starts[:num_stages], starts[1 : num_stages + 1] - 1
        begins_s = timeline.start_s[queue[first]]
        if self.period_s is not None:
            return begins_s, begins_s + self.period_s
        return begins_s, timeline.end_s[queue[last]]

    @property
    def time_s(self) -> float:
        """Time from one iteration to the next: that of the stage that takes longest."""
        if self.period_s is not None:
            return self.period_s
        starts_s, ends_s = self.windows_s
        return float((ends_s - starts_s).max())

    @cached_property
    def waiting(self) -> Timeline:
        """The timeline in which a copy from the host lasts as long as its pass waits for it.

        A copy that is ahead of time delays nothing, although it may run while its stage is idle. A
        copy that starts late delays its pass from the moment at which this could start.
        """
        tasks, timeline = self.tasks, self.timeline
        if not len(tasks.reloads):
            return timeline
        graph, end_s = tasks.graph, timeline.end_s
        waiting = np.repeat(np.arange(graph.num_tasks), np.diff(graph.after_starts))
        counts = ~np.isin(graph.after, tasks.reloads)
        ready_s = np.zeros(graph.num_tasks)
        np.maximum.at(ready_s, waiting[counts], end_s[graph.after[counts]])
        before = graph.previous
        np.maximum(ready_s, np.where(before >= 0, end_s[before], 0.0), out=ready_s)
        start_s, of_reloads = timeline.start_s.copy(), end_s[tasks.reloads]
        free_s = np.where(before >= 0, end_s[before], 0.0)[tasks.reloads]
        start_s[tasks.reloads] = np.minimum(
            np.maximum(ready_s[tasks.reloaders], free_s), of_reloads
        )
        return Timeline(timeline.program, start_s, end_s)


# Iterations that follow each other without a flush of the pipeline (PipeDream-2BW).
#
# The program of one iteration is repeated several times. On each stage, the first forward passes of
# an iteration alternate with the last backward passes of the one before. After them comes the
# forward pass of the next pair, then the optimizer step of the iteration before: its reduction can
# overlap this pass, and the next backward pass needs the gradient buffer. Other streams run one
# iteration after the other.
#
# After some iterations, each begins equally long after the one before on every stage: that is the
# time of an iteration, and the times of its tasks repeat.

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
