"""The tasks of an iteration, their names, and the program that they are with durations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import LinkLoads, Program, TaskGraph, Timeline, find_idle_seconds
from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.engine.program import starts_of
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
from simtrain.iteration.programs.streams import (
    BUCKETS,
    FROM_HOST,
    HOST,
    LINK_STEPS,
    MODEL,
    NUM_GROUPS,
    NVME_READS,
    NVME_WRITES,
    SHARED,
    TO_NEXT,
    TO_PREVIOUS,
)
from simtrain.schedules import Messages
from simtrain.schedules.stage_placement import ring_neighbour

if TYPE_CHECKING:
    from simtrain.iteration.programs.seconds import IterationSeconds

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
        """Return starts and ends of the actions at some places of the schedule."""
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
