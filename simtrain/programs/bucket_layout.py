"""When buckets are reduced and gathered: what they wait for among a pipeline's tasks.

The last backward pass on a chunk is cut into spans, one for each bucket of its gradients, and the
first forward pass into spans that need a bucket of parameters each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.programs.pipeline import PipelineTasks
from simtrain.schedules import KINDS, Schedule

Dependencies = list[tuple[Ints, Ints]]
"""Tasks that wait, and as many tasks that they wait for."""
_FORWARD = KINDS.index("F")


@dataclass(frozen=True, slots=True, eq=False)
class BucketSpans:
    """Spans of the actions `cut`, action by action.

    Args:
        cut: [cut actions], by stage and in the order in which each stage runs them.
        actions: [spans], the action of each span.
        numbers: [spans], its number in the order in which the action runs them.
        tasks: [spans], its task.
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
        """All spans, each action's in their order or the last of them first."""
        counts = pipeline.last[cut] - pipeline.first[cut] + 1
        actions, numbers = spread(cut, counts)
        if is_reversed:
            numbers = np.repeat(counts, counts) - 1 - numbers
        return cls(schedule, cut, actions, numbers, pipeline.first[actions] + numbers)

    @property
    def stages(self) -> Ints:
        """[spans], the stage of each."""
        return self.schedule.rank[self.actions]


def gather_waits(pipeline: PipelineTasks, spans: BucketSpans, gathers: Ints) -> Dependencies:
    """What gathers wait for if each stage starts them when it comes to them.

    Megatron-LM waits for a module's bucket before the module's forward pass, and then starts to
    gather the next bucket of the chunk (`finish_param_sync`). It starts the chunk's first bucket
    there too, which nothing hides.
    """
    first = pipeline.first[spans.cut]
    of_first = gathers[spans.numbers == 0]
    has_before = first > pipeline.own_starts[spans.schedule.rank[spans.cut]]
    # The first gather waits for all that the first span waits for.
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
    """What gathers wait for if all stages start them at about the same time.

    The buckets of the first two chunks start at once. Those of a later chunk start when the first
    stage comes to the chunk before it; another stage counts that in its own forward passes, as many
    passes earlier as its number (`forward_step_helper_preprocess`). A chunk's buckets start
    together, in the order of their gradients (`start_param_sync`).
    """
    schedule, starters = spans.schedule, np.full(len(spans.cut), -1, np.int32)
    for stage in range(schedule.num_stages):
        own = np.arange(*schedule.rank_starts[stage : stage + 2])
        forwards = own[schedule.kind[own] == _FORWARD]
        (places,) = np.nonzero(schedule.rank[spans.cut] == stage)
        begins = np.searchsorted(forwards, spans.cut[places])
        starters[places[2:]] = forwards[begins[1:-1] - stage]
    before = pipeline.first[starters] - 1
    waits = (starters >= 0) & (before >= pipeline.own_starts[schedule.rank[spans.cut]])
    is_first_of_action = np.append(True, spans.actions[1:] != spans.actions[:-1])
    return [(gathers[is_first_of_action][waits], before[waits])]


def aligned_reduction_starts(pipeline: PipelineTasks, spans: BucketSpans) -> Ints:
    """The task after which each bucket is reduced if all stages start at about the same time.

    Without interleaving, the first stage reduces beside its last backward pass, and the others when
    they have nothing else to do. With it, a stage starts to reduce a chunk as many backward passes
    after the chunk's last one as the stage's number (`backward_step_helper_postprocess`).
    """
    schedule, stages = spans.schedule, spans.stages
    ends = pipeline.own_starts[1:] - 1
    if schedule.name != "interleaved":
        starts: Ints = np.where(stages == 0, spans.tasks, ends[stages])
        return starts
    found = np.empty(len(spans.actions), np.int32)
    for stage in range(schedule.num_stages):
        own = np.arange(*schedule.rank_starts[stage : stage + 2])
        backwards = own[schedule.kind[own] != _FORWARD]
        later = np.searchsorted(backwards, spans.actions[stages == stage]) + stage
        tasks = np.append(pipeline.last[backwards], ends[stage])
        found[stages == stage] = tasks[np.minimum(later, len(backwards))]
    return found


def spread(values: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Each value as often as its count says, and with it 0, 1, 2, ..."""
    ends = np.cumsum(counts)
    number = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return np.repeat(values, counts), number
