"""The kernels of a stage over a simulated iteration: those of its passes, transfers and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simtrain.base.values import dataclass
from simtrain.engine import Timeline
from simtrain.engine.compiled import Floats, Ints
from simtrain.iteration.plan import PassVariant
from simtrain.iteration.programs.parts import (
    BucketPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
)
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.iteration.report.spans import Spans
from simtrain.workload.ops import Op
from simtrain.workload.passes import record_of

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result


@dataclass(frozen=True, slots=True, eq=False)
class PassKernels:
    """The launches and kernels of a pass.

    Args:
        ops: the ops, in issue order.
        timeline: of the pass alone: task 2i launches op i, task 2i + 1 runs it.
    """

    ops: tuple[Op, ...]
    timeline: Timeline

    @classmethod
    def of(cls, seconds: IterationSeconds, variant: PassVariant) -> PassKernels:
        pass_ = seconds.plan.variants[variant]
        return cls((*record_of(pass_).ops,), seconds.machine.timeline(pass_))

    def times_in(self, iteration: Timeline, tasks: slice) -> tuple[Floats, Floats]:
        """Return the moments in the iteration at which launches and ops start and end.

        Args:
            iteration: the timeline of the iteration.
            tasks: the tasks of the pass. One that buckets cut has several and may wait between
                them; each op is shifted with the one in which it ends.
        """
        inside = self.timeline
        ends_s = np.cumsum(iteration.program.duration_s[tasks])
        begins_s = ends_s - iteration.program.duration_s[tasks]
        span = np.searchsorted(ends_s, inside.end_s * (1 - 1e-12))
        shift_s = (iteration.start_s[tasks] - begins_s)[np.minimum(span, len(ends_s) - 1)]
        limits_s = float(iteration.start_s[tasks][0]), float(iteration.end_s[tasks][-1])
        return (inside.start_s + shift_s).clip(*limits_s), (inside.end_s + shift_s).clip(*limits_s)


@dataclass(frozen=True, slots=True, eq=False)
class StageKernels:
    """The kernels of a rank of a stage.

    Args:
        names: of different kernels: of the op in a pass, else of the task.
        ops: of different kernels, what they do; None for a transfer between stages.
        kernel: [kernels], index into `names` and `ops`.
        stream: [kernels], the stream; inside passes 0 computes, others communicate.
        start_s, end_s: [kernels], moments in the iteration.
        launched_s: [kernels], when the host had launched it; NaN outside passes.
    """

    names: Sequence[str]
    ops: Sequence[Op | None]
    kernel: Ints
    stream: Ints
    start_s: Floats
    end_s: Floats
    launched_s: Floats


def stage_kernels(result: Result, stage: int) -> StageKernels:
    """Return the kernels of a stage, in no particular order."""
    iteration, passes, spans = result.iteration, result.passes, result.spans.of_stage(stage)
    tasks, name_of = iteration.tasks, iteration.tasks.graph.name_of
    names: list[str] = []
    ops: list[Op | None] = []
    columns: list[tuple[Ints, Ints, Floats, Floats, Floats]] = []
    kernels_of: dict[PassVariant, tuple[PassKernels, int]] = {}
    for number in np.unique(spans.pass_number[spans.pass_number >= 0]).tolist():
        first, last = int(passes.first[number]), int(passes.last[number])
        part = tasks.parts[tasks.part_of[first]]
        assert isinstance(part, PassPart)
        if part.variant not in kernels_of:
            recorded = PassKernels.of(iteration.seconds, part.variant)
            kernels_of[part.variant] = recorded, len(names)
            names += [op.name for op in recorded.ops]
            ops += recorded.ops
        inside, first_kernel = kernels_of[part.variant]
        start_s, end_s = inside.times_in(iteration.timeline, slice(first, last + 1))
        kernel = first_kernel + np.arange(len(inside.ops), dtype=np.int32)
        stream = inside.timeline.program.graph.stream_of[1::2]
        columns.append((kernel, stream, start_s[1::2], end_s[1::2], end_s[0::2]))
    others = _other_spans(result, spans)
    parts = [tasks.parts[part] for part in tasks.part_of[others.task].tolist()]
    kernel = len(names) + np.arange(len(others), dtype=np.int32)
    stream = 100 + tasks.graph.stream_of[others.task]
    not_launched = np.full(len(others), np.nan)
    columns.append((kernel, stream, others.start_s, others.end_s, not_launched))
    names += map(name_of, others.task.tolist())
    ops += [_longest_op(iteration.seconds, part) for part in parts]
    return StageKernels(names, ops, *map(np.concatenate, zip(*columns, strict=True)))


def _other_spans(result: Result, spans: Spans) -> Spans:
    """Return the spans that are no passes, by stream; not work of the host."""
    tasks, duration_s = result.iteration.tasks, result.timeline.program.duration_s
    of_host = np.array([isinstance(part, SynchronizationPart) for part in tasks.parts])
    # What a single rank need not do takes no time.
    lasts = (spans.pass_number < 0) & (duration_s[spans.task] > 0)
    others = spans.where(lasts & ~of_host[tasks.part_of[spans.task]])
    return others.where(np.argsort(others.stream, kind="stable"))


def _longest_op(seconds: IterationSeconds, part: IterationPart) -> Op | None:
    if not isinstance(part, ReceiveGatherPart | BucketPart | OptimizerPart):
        return None
    return max(seconds.ops_of(part), key=lambda op: seconds.machine.model.seconds(op.work))
