"""Who ran what, when, on which stream: the spans that reports, pictures and traces read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import numpy as np

from simtrain.engine import busy_before
from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.errors import InputError, Location
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
from simtrain.iteration.programs.seconds import IterationSeconds, whole_pass
from simtrain.iteration.report.breakdown import field_of
from simtrain.schedules.stage_placement import ring_neighbour
from simtrain.units import format_seconds

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result


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
    [
        StageStream.OWN,
        StageStream.SENDS_FORWARD,
        StageStream.SENDS_BACKWARD,
        StageStream.BUCKETS,
    ],
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
        parts = [isinstance(part, PassPart) and part.kind == "R" for part in tasks.parts]
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
        case PassPart(beside=PassPart()):
            return Activity.MERGED
        case PassPart(kind=kind):
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
    time = seconds.passes[whole_pass(part)]
    return time.recompute_s / time.duration_s if time.duration_s else 0.0


# What pictures show of an iteration: chosen stages and seconds, or its start, middle and end.

Window = tuple[float, float]
"""Start and end in seconds."""
_MOST_PASSES = 100
"""More passes of a stage than these are a uniform band in a picture."""
_PASSES_OF_WINDOW, _PASSES_MORE, _LEAST_SAVED = 24, 2, 0.2


def windows_of(result: Result) -> dict[str, Window]:
    """Return the windows that show an iteration, by name.

    An iteration of few passes has one window without a name. A longer one has three: the "start"
    until every stage has begun its first backward pass, a "steady part" of some passes in the
    middle, and the "end" after the last pass of the stage that ends first. Three windows that would
    show nearly everything are one.
    """
    end_s, bars = result.timeline.makespan_s, result.bars
    passes = bars.where(bars.microbatch >= 0)
    num_passes = len(passes) / result.num_stages
    whole = {"": (0.0, end_s)}
    if num_passes <= _MOST_PASSES:
        return whole
    kinds = [ACTIVITIES.index(ACTIVITY_OF_KIND[kind]) for kind in "BIW"]
    backward = passes.where(np.isin(passes.activity, kinds))
    first_s, last_s = np.full(result.num_stages, np.inf), np.zeros(result.num_stages)
    np.minimum.at(first_s, backward.stage, backward.start_s)
    np.maximum.at(last_s, passes.stage, passes.end_s)
    pass_s = end_s / num_passes
    piece_s, more_s = _PASSES_OF_WINDOW * pass_s, _PASSES_MORE * pass_s
    begin_s = max(piece_s, float(first_s.max()) + more_s)
    final_s = max(piece_s, end_s - float(last_s.min()) + more_s)
    if begin_s + piece_s + final_s > (1 - _LEAST_SAVED) * end_s:
        return whole
    middle_s = (begin_s + end_s - final_s - piece_s) / 2
    return {
        "start": (0.0, begin_s),
        "steady part": (middle_s, middle_s + piece_s),
        "end": (end_s - final_s, end_s),
    }


def check_selection(
    result: Result, stages: Sequence[int] | None, window_s: Window | None
) -> tuple[list[int], Window]:
    """Return the stages and the seconds to show: by default all of them.

    Raises:
        InputError: a stage does not exist, or the window shows nothing of the iteration (E118).
    """
    if not isinstance(stages, Iterable | None):
        message = f"stages is {stages!r}, not a list"
        raise InputError.of("E118", message, Location("stages"), f"write stages=[{stages}]")
    if window_s is not None and not (isinstance(window_s, Sequence) and len(window_s) == 2):
        message = f"window_s is {window_s!r:.80}, not a start and an end"
        raise InputError.of("E118", message, Location("window"), "write window_s=(0.0, 0.5)")
    known, last = range(result.num_stages), result.num_stages - 1
    chosen = [*(known if stages is None else stages)]
    wrong = [stage for stage in chosen if stage not in known]
    if wrong or not chosen:
        message = f"there is no stage {wrong[0]!r}" if wrong else "no stage is chosen"
        fix = f"choose stages from 0 to {last}" if last else "choose stage 0, the only one"
        raise InputError.of("E118", message, Location("stages"), fix)
    end_s = result.timeline.makespan_s
    first_s, last_s = window_s or (0.0, end_s)
    if not (0 <= first_s < last_s and first_s < end_s):
        words = f"{format_seconds(first_s)} to {format_seconds(last_s)}"
        message = f"the window {words} shows nothing of the iteration"
        fix = f"choose a window within 0 s to {format_seconds(end_s)}, its start before its end"
        raise InputError.of("E118", message, Location("window"), fix)
    return sorted({*chosen}), (first_s, min(last_s, end_s))
