"""The tasks of an iteration, their names, and the program that they are with durations."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass, field
from simtrain.engine import LinkLoads, Program, TaskGraph, Timeline, find_idle_seconds
from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.engine.program import starts_of
from simtrain.iteration.plan import PassVariant
from simtrain.iteration.programs.parts import (
    BucketPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.schedules import Messages
from simtrain.schedules.stage_placement import ring_neighbour

# The streams of an iteration: groups with one stream per stage, and two that all stages share.
#
# A stage computes on one stream and has a link to either neighbour on the ring of stages. Messages
# are on the link to their receiver, in the order in which the stage sends them.

COMPUTE, TO_NEXT, TO_PREVIOUS, BUCKETS, NUM_GROUPS = range(5)
"""Groups of one stream per stage. Stream `group * num_stages + stage` is that of a stage."""
LINK_STEPS = np.array([0, 1, -1, 0], np.int32)
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
    "sequence_parallel": ("partial gradient all-reduce", "tensor"),
    "embedding": ("embedding gradient all-reduce", "embedding"),
    "to_host": ("gradients to host", "optimizer"),
    "norm": ("gradient norm", "optimizer"),
    "norm_reduction": ("gradient norm all-reduce", "norm"),
    "update": ("Adam", "optimizer"),
    "parameter_gather": ("parameter all-gather", "parameter gather"),
    "weight_cast": ("weight casts", "optimizer"),
}


def label_of(part: IterationPart) -> tuple[str, str]:
    """Return the name and the kind of a part's tasks; the name contains an action or a message."""
    match part:
        case TransferPart():
            return "{message}", "transfer"
        case ReceiveGatherPart():
            return "gather {message}", "receive gather"
        case SynchronizationPart():
            return "synchronize", "synchronize"
        case PassPart(PassVariant(kind="R")):
            return _STEP_LABELS["data_reduction"]
        case PassPart(PassVariant(kind=kind, beside=None)):
            return "{action}", "forward" if kind == "F" else "backward"
        case PassPart():
            return "{action}", "merged"
        case BucketPart(gathers=gathers):
            return f"{'parameters' if gathers else 'gradients'} of {{action}}", "data bucket"
        case OptimizerPart(name=name):
            return _STEP_LABELS[name]


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
    stage 3; `embedding` and `model` have collectives over several stages.

    Args:
        graph: tasks, streams and dependencies.
        num_stages: pipeline stages.
        parts, part_of: task i belongs to part `parts[part_of[i]]`, which determines its duration.
        first, last: [actions], first and last task of each action of the schedule. Merged actions
            share one task.
        norms: [stages], first task of each stage's optimizer.
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

    def program(self, seconds: IterationSeconds) -> Program:
        """Return the program, given the durations and the adapter loads of the parts.

        The ranks of a stage share their nodes' adapters, in each direction. Transfers only share
        them with buckets; without buckets there are no shared links.
        """
        part_s, link_loads = np.array([*map(seconds.of_part, self.parts)]), None
        buckets = (part for part in self.parts if isinstance(part, BucketPart))
        if any(map(seconds.adapter_load, buckets)):
            load = np.array([*map(seconds.adapter_load, self.parts)])
            link_loads = self._link_loads(load[self.part_of])
        return Program(self.graph, part_s, link_loads, of_kinds=True)

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
        previous one, embedding, buckets, norm.
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
        )
        categories = np.array([0, 0, 0, 0, 0, 1, 2], np.int32)
        part_of = np.tile(categories, (len(stages), 1))
        return stages, np.stack(others, axis=1).astype(np.int32), part_of


@dataclass(frozen=True, eq=False)
class IterationTimeline:
    """When each task of an iteration runs.

    Args:
        timeline: start and end of each task.
        tasks: the tasks by stage and action.
        seconds: the durations of their parts.
    """

    timeline: Timeline
    tasks: IterationTasks = field(repr=False)
    seconds: IterationSeconds = field(repr=False)

    def idle_seconds(self) -> Floats:
        """Return [stages, 3], idle seconds of each stage while other streams run.

        Columns: transfers, and collectives of embedding; the stage's buckets; the gradient norm.
        """
        return find_idle_seconds(self.timeline, *self.tasks.waits, self.seconds.machine.engine)

    @cached_property
    def time_s(self) -> float:
        return self.timeline.makespan_s
