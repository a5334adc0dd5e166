"""Who ran what, when, on which stream: the spans that reports, pictures and traces read."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import numpy as np

from simtrain.base.values import dataclass, fields, replace
from simtrain.engine import busy_before
from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.iteration.plan import PassVariant
from simtrain.iteration.programs.iteration_tasks import (
    LINK_STEPS,
    NUM_GROUPS,
    IterationTasks,
    IterationTimeline,
)
from simtrain.iteration.programs.parts import (
    BucketPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.iteration.programs.pipeline import spread
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.iteration.report.breakdown import field_of
from simtrain.schedules.stage_placement import ring_neighbour


class Activity(StrEnum):
    """What a span does."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    INPUT_GRADIENTS = "input gradients"
    WEIGHT_GRADIENTS = "weight gradients"
    MERGED = "forward beside backward"
    TRANSFER = "pipeline transfer"
    REDUCTION = "gradient and parameter collectives"
    OPTIMIZER = "optimizer"


ACTIVITIES = (*Activity,)
ACTIVITY_OF_KIND: dict[str, Activity] = {
    "F": Activity.FORWARD,
    "B": Activity.BACKWARD,
    "I": Activity.INPUT_GRADIENTS,
    "W": Activity.WEIGHT_GRADIENTS,
    "R": Activity.REDUCTION,
}
"""Activity of each kind of pass."""


class StageStream(IntEnum):
    """The streams of a stage.

    After its own, they are in the order in which its idle time is charged to them
    (`IterationTasks.waits`).
    """

    OWN = 0
    SENDS_FORWARD = 1
    RECEIVES_FORWARD = 2
    SENDS_BACKWARD = 3
    RECEIVES_BACKWARD = 4
    EMBEDDING = 5
    BUCKETS = 6
    MODEL = 7


_RECEIVES = StageStream.RECEIVES_FORWARD, StageStream.RECEIVES_BACKWARD
_OF_GROUP = np.array(
    # [groups] of `programs.streams`: the stream on the stage that computes or sends.
    [StageStream.OWN, StageStream.SENDS_FORWARD, StageStream.SENDS_BACKWARD, StageStream.BUCKETS],
    np.int32,
)


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """The passes of an iteration: the cells of the schedule, then what runs after all of them.

    This is a reduction of gradients.

    Args:
        first, last: [passes], first and last task. Buckets cut some passes into several tasks.
        chunk: [passes], counted within its stage; -1 after the schedule.
        microbatches: [passes, 2], that of a pass, twice, or those of merged passes. What runs after
            the schedule counts to the last microbatch.
    """

    first: Ints
    last: Ints
    chunk: Ints
    microbatches: Ints

    @classmethod
    def of(cls, iteration: IterationTimeline) -> Passes:
        tasks, schedule = iteration.tasks, iteration.seconds.plan.schedule
        parts = [isinstance(part, PassPart) and part.variant.kind == "R" for part in tasks.parts]
        reductions = np.flatnonzero(np.array(parts)[tasks.part_of]).astype(np.int32)
        cells = np.flatnonzero(~schedule.follows_merged)
        ends = np.append(cells[1:], len(schedule.kind)) - 1
        chunk = np.array(schedule.placement.chunks, np.int32)[schedule.virtual_stage[cells]]
        last = np.full((len(reductions), 2), schedule.num_microbatches - 1, np.int32)
        of_cells = np.stack([schedule.microbatch[cells], schedule.microbatch[ends]], axis=1)
        return cls(
            np.concatenate([tasks.first[cells], reductions]),
            np.concatenate([tasks.last[cells], reductions]),
            np.concatenate([chunk, np.full_like(reductions, -1)]),
            np.concatenate([of_cells, last]),
        )

    def of_tasks(self, num_tasks: int) -> Ints:
        """Return [tasks], the number of the pass of each task; -1 for none."""
        numbers = np.full(num_tasks, -1, np.int32)
        counts = self.last - self.first + 1
        first, later = spread(self.first, counts)
        numbers[first + later] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """What stages do when: a span for each task on each stage that takes part in it.

    Args:
        task: [spans], task of the iteration. `Spans.of` sorts by it.
        stage: [spans]. A transfer is on its sender and on its receiver, a collective of several
            stages on each of them.
        stream: [spans], one of `StageStream`.
        activity: [spans], index into `ACTIVITIES`.
        pass_number: [spans], number of the pass among `Passes`; -1 for other tasks.
        chunk, microbatch: [spans], those of a pass, counted within its stage; -1 for others and for
            reductions. Merged passes have those of the forward pass.
        start_s, end_s: [spans], moments in the iteration.
    """

    task: Ints
    stage: Ints
    stream: Ints
    activity: Ints
    pass_number: Ints
    chunk: Ints
    microbatch: Ints
    start_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, iteration: IterationTimeline, passes: Passes) -> Spans:
        tasks, timeline = iteration.tasks, iteration.timeline
        task, stage, stream = _placed(tasks)
        activities = [ACTIVITIES.index(activity_of(part)) for part in tasks.parts]
        activity = np.array(activities, np.int32)[tasks.part_of[task]]
        number = passes.of_tasks(tasks.graph.num_tasks)[task]
        # Place -1 is for tasks that are no pass.
        chunk = np.append(passes.chunk, np.int32(-1))[number]
        microbatch = np.append(passes.microbatches[:, 0], np.int32(-1))[number]
        cell = chunk, np.where(chunk >= 0, microbatch, np.int32(-1))
        moments_s = timeline.start_s[task], timeline.end_s[task]
        return cls(task, stage, stream, activity, number, *cell, *moments_s)

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def seconds(self) -> Floats:
        """[spans], their durations."""
        return self.end_s - self.start_s

    def where(self, chosen: Ints | Flags) -> Spans:
        return Spans(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def of_stage(self, stage: int) -> Spans:
        return self.where(self.stage == stage)

    def within(self, stages: list[int], window_s: tuple[float, float]) -> Spans:
        start_s, end_s = window_s
        chosen = np.isin(self.stage, stages) & (self.end_s > start_s) & (self.start_s < end_s)
        return self.where(chosen & (self.end_s > self.start_s))

    def busy_seconds(self, edges_s: Floats) -> Floats:
        """Return [activities, slices], the seconds of each activity between neighbouring edges.

        Spans of one activity must not overlap: they are those of one stream.
        """
        spans = self.where(np.argsort(self.start_s, kind="stable"))
        intervals = np.stack([spans.start_s, spans.end_s], axis=1)
        of_activity = [spans.activity == number for number in range(len(ACTIVITIES))]
        return np.diff([busy_before(edges_s, intervals[chosen]) for chosen in of_activity])

    def bars(self, iteration: IterationTimeline) -> Spans:
        """Return the spans that pictures show: one for each pass, and recompute apart.

        A transfer is on its sender only. A pass that its buckets cut is one span, unless it waits
        between them. A backward pass with recompute is two: its seconds of recompute come first,
        although the pass recomputes block by block.
        """
        tasks = iteration.tasks
        sent = self.where(~np.isin(self.stream, _RECEIVES))
        first = ~sent._continues()
        ends = np.append(np.flatnonzero(first)[1:], len(sent)) - 1
        joined = replace(sent.where(first), end_s=sent.end_s[ends])
        shares = np.array([_recompute_share(part, iteration.seconds) for part in tasks.parts])
        return joined._cut(shares[tasks.part_of[joined.task]])

    def _continues(self) -> Flags:
        """Return whether each span goes on with the pass of the span before it."""
        continues = np.zeros(len(self), np.bool_)
        continues[1:] = (self.pass_number[1:] >= 0) & (self.start_s[1:] == self.end_s[:-1])
        continues[1:] &= self.pass_number[1:] == self.pass_number[:-1]
        return continues

    def _cut(self, share: Floats) -> Spans:
        moment_s = self.start_s + share * self.seconds
        cut = np.flatnonzero(share > 0)
        before = replace(
            self.where(cut),
            activity=np.full(len(cut), ACTIVITIES.index(Activity.RECOMPUTE), np.int32),
            microbatch=np.full(len(cut), -1, np.int32),
            end_s=moment_s[cut],
        )
        after = replace(self, start_s=moment_s)
        return Spans(
            *(
                np.concatenate([getattr(each, field.name) for each in (after, before)])
                for field in fields(self)
            )
        )


def _placed(tasks: IterationTasks) -> tuple[Ints, Ints, Ints]:
    """Return task, stage and stream of each span, sorted by task."""
    num_stages, graph = tasks.num_stages, tasks.graph
    task = np.flatnonzero(graph.stream_of < NUM_GROUPS * num_stages)
    group, stage = np.divmod(graph.stream_of[task], num_stages)
    placed = [(task, stage, _OF_GROUP[group])]
    step = LINK_STEPS[group]
    moves, receiver = step != 0, ring_neighbour(stage, step, num_stages)
    # A receiving stream follows the sending one.
    placed.append((task[moves], receiver[moves], _OF_GROUP[group[moves]] + 1))
    holders, stages = np.flatnonzero(tasks.holds_embedding), np.arange(num_stages)
    shared = (  # in the order of `programs.streams.SHARED`
        (StageStream.EMBEDDING, holders),
        (StageStream.MODEL, stages),
    )
    for number, (stream, members) in enumerate(shared):
        task = np.flatnonzero(graph.stream_of == NUM_GROUPS * num_stages + number)
        streams = np.full(len(task) * len(members), stream)
        placed.append((np.repeat(task, len(members)), np.tile(members, len(task)), streams))
    columns = [np.concatenate(column).astype(np.int32) for column in zip(*placed, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    tasks_of, stages_of, streams_of = (column[order] for column in columns)
    return tasks_of, stages_of, streams_of


def activity_of(part: IterationPart) -> Activity:
    """Return what the tasks of a part do."""
    match part:
        case PassPart(PassVariant(beside=PassVariant())):
            return Activity.MERGED
        case PassPart(PassVariant(kind=kind)):
            return ACTIVITY_OF_KIND[kind]
        case BucketPart():
            return Activity.REDUCTION
        case TransferPart() | ReceiveGatherPart() | SynchronizationPart():
            return Activity.TRANSFER
        case OptimizerPart():
            return Activity.OPTIMIZER if field_of(part) == "optimizer_s" else Activity.REDUCTION


def _recompute_share(part: IterationPart, seconds: IterationSeconds) -> float:
    """Return the share of a pass that is recompute; a part of a pass has the whole pass's."""
    if not isinstance(part, PassPart):
        return 0.0
    time = seconds.passes[part.variant]
    return time.recompute_s / time.duration_s if time.duration_s else 0.0
