"""What each stage does when: the bars of which pictures of a timeline consist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.errors import InputError, Location
from simtrain.iteration.programs.bucket_tasks import spread
from simtrain.iteration.programs.parts import (
    BucketPart,
    CopyPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
    VocabularyPart,
)
from simtrain.iteration.programs.seconds import whole_pass
from simtrain.iteration.programs.streams import EMBEDDING, VOCABULARY
from simtrain.iteration.report.breakdown import field_of
from simtrain.units import format_seconds

if TYPE_CHECKING:
    from simtrain.iteration.programs.seconds import IterationSeconds
    from simtrain.iteration.report.result import Result

ACTIVITIES = (
    FORWARD,
    RECOMPUTE,
    BACKWARD,
    INPUT_GRADIENTS,
    WEIGHT_GRADIENTS,
    MERGED,
    TRANSFER,
    REDUCTION,
    OPTIMIZER,
    HOST_COPY,
) = (
    "forward",
    "recompute",
    "backward",
    "input gradients",
    "weight gradients",
    "forward beside backward",
    "pipeline transfer",
    "gradient and parameter collectives",
    "optimizer",
    "copy to or from the host",
)
LETTERS = dict(zip(ACTIVITIES, "FRBIWMTGOC", strict=True))
"""The letter of each activity, where a picture has no room for its name."""
MARKED = INPUT_GRADIENTS, WEIGHT_GRADIENTS, MERGED
"""Passes whose bars have their letter beside the microbatch, to tell them from whole passes."""
OWN, LINKS, BUCKETS, HOST_COPIES = range(4)
"""Rows of a stage: its own stream, transfers, buckets of gradients and parameters, and copies."""
_ROWS = np.array([OWN, LINKS, LINKS, BUCKETS, HOST_COPIES, HOST_COPIES])


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Bars of a timeline.

    A backward pass with recompute is two bars: its seconds of recompute come first, although the
    pass recomputes block by block.

    Args:
        stage: [bars], the pipeline stage of each bar. A collective of several stages has a bar on
            each of them.
        row: [bars], `OWN`, `LINKS`, `BUCKETS` or `HOST_COPIES`. Transfers are on the sender's row.
        activity: [bars], index into `ACTIVITIES`.
        chunk, microbatch: [bars], those of a pass, counted within its stage; -1 for other bars.
            Merged passes have those of the forward pass.
        start_s, end_s: [bars].
    """

    stage: Ints
    row: Ints
    activity: Ints
    chunk: Ints
    microbatch: Ints
    start_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, result: Result) -> Bars:
        """All bars of a result's timeline."""
        tasks, (task, bars) = result.iteration.tasks, cls.of_tasks(result)
        shares = np.array([_recompute_share(part, result.seconds) for part in tasks.parts])
        first = ~bars._continues()
        share = shares[tasks.part_of[task]][first]
        ends = np.append(np.flatnonzero(first)[1:], len(bars)) - 1
        joined = bars.where(first)
        joined.end_s[:] = bars.end_s[ends]
        return joined._cut(share)

    @classmethod
    def of_tasks(cls, result: Result) -> tuple[Ints, Bars]:
        """One bar for each task on each of its stages, before passes are joined and cut.

        Also return [bars], the task of each bar.
        """
        tasks, timeline = result.iteration.tasks, result.timeline
        places = [ACTIVITIES.index(activity_of(part)) for part in tasks.parts]
        task, stage, row = _placed(result)
        chunk, microbatch = _passes(result)[:, task]
        activity = np.array(places, np.int32)[tasks.part_of[task]]
        moments_s = timeline.start_s[task], timeline.end_s[task]
        return task, cls(stage, row, activity, chunk, microbatch, *moments_s)

    def _continues(self) -> Flags:
        """Whether each bar goes on with the pass before it, which is cut only for its buckets."""
        continues = np.zeros(len(self), np.bool_)
        continues[1:] = self.microbatch[1:] >= 0
        for column in (self.stage, self.activity, self.chunk, self.microbatch):
            continues[1:] &= column[1:] == column[:-1]
        continues[1:] &= self.start_s[1:] == self.end_s[:-1]
        return continues

    def __len__(self) -> int:
        return len(self.stage)

    def where(self, chosen: Ints | Flags) -> Bars:
        """The bars of an index or a mask."""
        return Bars(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def _cut(self, share: Floats) -> Bars:
        """Cut bars into recompute, the given share of each, and what follows it."""
        moment_s = self.start_s + share * (self.end_s - self.start_s)
        cut = np.flatnonzero(share > 0)
        first = self.where(cut)
        first.activity[:], first.end_s[:] = ACTIVITIES.index(RECOMPUTE), moment_s[cut]
        first.microbatch[:] = -1
        self.start_s[cut] = moment_s[cut]
        names = (field.name for field in fields(self))
        return Bars(*(np.concatenate([getattr(self, n), getattr(first, n)]) for n in names))


def check_selection(
    result: Result, stages: Sequence[int] | None, window_s: tuple[float, float] | None
) -> tuple[list[int], tuple[float, float]]:
    """The stages and the seconds to show: by default all of them.

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


def _passes(result: Result) -> Ints:
    """[2, tasks], the chunk and the microbatch of each pass; -1 for other tasks."""
    tasks, schedule = result.iteration.tasks, result.plan.schedule
    numbers = np.full((2, tasks.graph.num_tasks), -1, np.int32)
    cells = ~schedule.follows_merged
    counts = (tasks.last - tasks.first + 1)[cells]
    begins, offsets = spread(tasks.first[cells], counts)
    chunk = np.array(schedule.placement.chunks)[schedule.virtual_stage]
    passes = np.stack([chunk, schedule.microbatch])[:, cells]
    numbers[:, begins + offsets] = np.repeat(passes, counts, axis=1)
    return numbers


def _placed(result: Result) -> tuple[Ints, Ints, Ints]:
    """The task, stage and row of each bar; collectives of several stages are on all of them."""
    num_stages, graph = result.num_stages, result.iteration.tasks.graph
    group, stage = np.divmod(graph.stream_of, num_stages)
    task = np.flatnonzero(group < len(_ROWS))
    bars = [(task, stage[task], _ROWS[group[task]])]
    for number in np.flatnonzero(group >= len(_ROWS)).tolist():
        stream = graph.stream(number)
        members = shared_stages(result, stream)
        # Other passes hide the collectives of a split vocabulary.
        row = LINKS if stream == VOCABULARY else OWN
        bars.append((np.full(len(members), number), np.array(members), np.full(len(members), row)))
    tasks, stages, rows = (
        np.concatenate(column).astype(np.int32) for column in zip(*bars, strict=True)
    )
    return tasks, stages, rows


def shared_stages(result: Result, stream: str) -> list[int]:
    """The stages that meet on a stream of several stages: `embedding`, `model` or `vocabulary`."""
    if stream != EMBEDDING:
        return [*range(result.num_stages)]
    members: list[int] = np.flatnonzero(result.iteration.tasks.holds_embedding).tolist()
    return members


def activity_of(part: IterationPart) -> str:
    """What the tasks of a part do, one of `ACTIVITIES`."""
    match part:
        case PassPart(kind="R") | BucketPart():
            return REDUCTION
        case PassPart(kind="F", beside=None):
            return FORWARD
        case PassPart(kind="F"):
            return MERGED
        case PassPart(kind="I"):
            return INPUT_GRADIENTS
        case PassPart(kind="W"):
            return WEIGHT_GRADIENTS
        case PassPart():
            return BACKWARD
        case TransferPart() | ReceiveGatherPart() | SynchronizationPart() | VocabularyPart():
            return TRANSFER
        case CopyPart():
            return HOST_COPY
        case OptimizerPart():
            return OPTIMIZER if field_of(part) == "optimizer_s" else REDUCTION


def _recompute_share(part: IterationPart, seconds: IterationSeconds) -> float:
    """The share of a pass that is recompute; a span of a pass has the whole pass's."""
    if not isinstance(part, PassPart):
        return 0.0
    time = seconds.passes[whole_pass(part)]
    return time.recompute_s / time.duration_s if time.duration_s else 0.0
