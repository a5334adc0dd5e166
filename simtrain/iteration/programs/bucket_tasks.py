"""Dependencies of gradient and parameter buckets on the tasks of a pipeline.

The last backward pass of a chunk is cut into spans, one per gradient bucket. The first forward pass
is cut into spans, one per parameter bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.iteration.programs.pipeline import PipelineTasks
from simtrain.schedules import KINDS, Schedule

Dependencies = list[tuple[Ints, Ints]]
"""Pairs of arrays of equal length: waiting tasks, and the tasks that they wait for."""
_FORWARD = KINDS.index("F")
_WEIGHT_GRADIENTS = KINDS.index("B"), KINDS.index("W")


@dataclass(frozen=True, slots=True, eq=False)
class BucketSpans:
    """Spans of actions that are cut into buckets, action by action.

    Args:
        schedule: the schedule of the actions.
        cut: [cut actions], sorted by stage and then in the order of the stage.
        actions: [spans], action of each span.
        numbers: [spans], number of each span in its action.
        tasks: [spans], task of each span.
    """

    schedule: Schedule
    cut: Ints
    actions: Ints
    numbers: Ints
    tasks: Ints

    @classmethod
    def of(
        cls, schedule: Schedule, pipeline: PipelineTasks, cut: Ints, *, is_reversed: bool = False
    ) -> Self:
        """Return all spans of the cut actions; `is_reversed` puts each action's last span first."""
        counts = pipeline.last[cut] - pipeline.first[cut] + 1
        actions, numbers = spread(cut, counts)
        if is_reversed:
            numbers = np.repeat(counts, counts) - 1 - numbers
        return cls(schedule, cut, actions, numbers, pipeline.first[actions] + numbers)

    @property
    def stages(self) -> Ints:
        """[spans], stage of each span."""
        return self.schedule.rank[self.actions]


def gather_waits(pipeline: PipelineTasks, spans: BucketSpans, gathers: Ints) -> Dependencies:
    """Return the dependencies of gathers if each stage starts them when it needs them.

    Megatron-LM waits for a module's bucket before the module's forward pass, and then starts the
    gather of the chunk's next bucket (`finish_param_sync`). It starts the chunk's first bucket
    there too, which is exposed.
    """
    first = pipeline.first[spans.cut]
    of_first = gathers[spans.numbers == 0]
    has_before = first > pipeline.own_starts[spans.schedule.rank[spans.cut]]
    # The first gather waits for the same tasks as the first span.
    by_task = np.argsort(first)
    is_of_first = np.isin(pipeline.waiting, first)
    places = np.searchsorted(first[by_task], pipeline.waiting[is_of_first])
    # The second follows the first on its stream. The third starts when the first span has ended.
    later = spans.numbers >= 2
    return [
        (of_first[has_before], first[has_before] - 1),
        (of_first[by_task][places], pipeline.awaited[is_of_first]),
        (gathers[later], spans.tasks[later] - 2),
    ]


def aligned_gather_waits(
    pipeline: PipelineTasks, spans: BucketSpans, gathers: Ints
) -> Dependencies:
    """Return the dependencies of gathers if all stages start them at about the same time.

    Buckets of the first two chunks start at time 0. Buckets of a later chunk start when the first
    stage reaches the previous chunk. Stage s starts them s of its own forward passes earlier
    (`forward_step_helper_preprocess`). The buckets of a chunk start together, in the order of their
    gradients (`start_param_sync`).
    """
    schedule, starters = spans.schedule, np.full(len(spans.cut), -1, np.int32)
    for stage in range(schedule.num_stages):
        actions = np.arange(*schedule.rank_starts[stage : stage + 2])
        forwards = actions[schedule.kind[actions] == _FORWARD]
        (places,) = np.nonzero(schedule.rank[spans.cut] == stage)
        begins = np.searchsorted(forwards, spans.cut[places])
        starters[places[2:]] = forwards[begins[1:-1] - stage]
    before = pipeline.first[starters] - 1
    waits = (starters >= 0) & (before >= pipeline.own_starts[schedule.rank[spans.cut]])
    is_first_of_action = np.append(True, spans.actions[1:] != spans.actions[:-1])
    return [(gathers[is_first_of_action][waits], before[waits])]


def aligned_reduction_starts(pipeline: PipelineTasks, spans: BucketSpans) -> Ints:
    """Return [spans], the task after which each bucket is reduced if stages start together.

    With one chunk per stage, the first stage overlaps its reductions with its last backward pass,
    and the other stages reduce after all their passes. With several, stage s starts to reduce a
    chunk s backward passes after the chunk's last one (`backward_step_helper_postprocess`); of a
    split pass, its weight gradients count.
    """
    schedule, stages = spans.schedule, spans.stages
    ends = pipeline.own_starts[1:] - 1
    if schedule.num_chunks == 1:
        starts: Ints = np.where(stages == 0, spans.tasks, ends[stages])
        return starts
    waited_for = np.empty(len(spans.actions), np.int32)
    for stage in range(schedule.num_stages):
        actions = np.arange(*schedule.rank_starts[stage : stage + 2])
        backwards = actions[np.isin(schedule.kind[actions], _WEIGHT_GRADIENTS)]
        later = np.searchsorted(backwards, spans.actions[stages == stage]) + stage
        tasks = np.append(pipeline.last[backwards], ends[stage])
        waited_for[stages == stage] = tasks[np.minimum(later, len(backwards))]
    return waited_for


def spread(values: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Repeat each value by its count; also return the number of each repetition: 0, 1, 2, ..."""
    ends = np.cumsum(counts)
    number = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return np.repeat(values, counts), number
