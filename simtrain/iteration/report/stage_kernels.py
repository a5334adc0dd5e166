"""The kernels of a stage over a simulated iteration: those of its passes, transfers and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simtrain.engine import Timeline
from simtrain.engine.compiled import Floats, Ints
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.parts import (
    BucketPart,
    CopyPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
)
from simtrain.iteration.programs.seconds import whole_pass
from simtrain.iteration.programs.streams import TO_HOST
from simtrain.iteration.report.result import Result
from simtrain.workload.merged_passes import record_of
from simtrain.workload.ops import Op


@dataclass(frozen=True, slots=True, eq=False)
class TracedPasses:
    """The passes of an iteration: the cells of the schedule, then reductions after all passes.

    Args:
        first, last: [passes], first and last task. Buckets cut some passes into several tasks.
        microbatches: [passes, 2], that of a pass, twice, or those of merged passes. A reduction
            counts to the last microbatch.
    """

    first: Ints
    last: Ints
    microbatches: Ints

    @classmethod
    def of(cls, result: Result) -> TracedPasses:
        """Return the passes of an iteration."""
        tasks, schedule = result.iteration.tasks, result.plan.schedule
        parts = [isinstance(part, PassPart) and part.kind == "R" for part in tasks.parts]
        reductions = np.flatnonzero(np.array(parts)[tasks.part_of]).astype(np.int32)
        cells = np.flatnonzero(~schedule.follows_merged)
        ends = np.append(cells[1:], len(schedule.kind)) - 1
        last = np.full((len(reductions), 2), schedule.num_microbatches - 1, np.int32)
        of_cells = np.stack([schedule.microbatch[cells], schedule.microbatch[ends]], axis=1)
        return cls(
            np.concatenate([tasks.first[cells], reductions]),
            np.concatenate([tasks.last[cells], reductions]),
            np.concatenate([of_cells, last]),
        )


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


def passes_of(result: Result, stage: int) -> dict[str, tuple[float, float]]:
    """Return the passes of a stage by name, such as "0F0", in order, with their start and end."""
    passes, timeline = TracedPasses.of(result), result.timeline
    graph = timeline.program.graph
    return {
        graph.name_of(first): (float(timeline.start_s[first]), float(timeline.end_s[last]))
        for first, last in zip(passes.first.tolist(), passes.last.tolist(), strict=True)
        if graph.stream_of[first] == stage
    }


def stage_kernels(result: Result, stage: int, pass_name: str = "") -> StageKernels:
    """Return the kernels of a stage, or of one of its passes alone, in no particular order."""
    iteration, passes = result.iteration, TracedPasses.of(result)
    name_of = iteration.tasks.graph.name_of
    names: list[str] = []
    ops: list[Op | None] = []
    columns: list[tuple[Ints, Ints, Floats, Floats, Floats]] = []
    of_stage = np.flatnonzero(iteration.tasks.graph.stream_of[passes.first] == stage)
    first_kernel: dict[PassPart, int] = {}
    for number in of_stage.tolist():
        if pass_name and name_of(int(passes.first[number])) != pass_name:
            continue
        part = iteration.tasks.parts[iteration.tasks.part_of[passes.first[number]]]
        assert isinstance(part, PassPart)
        whole = whole_pass(part)
        pass_ = iteration.seconds.pass_of(whole)
        inside = iteration.seconds.machine.timeline(pass_)
        if whole not in first_kernel:
            first_kernel[whole] = len(names)
            recorded = [*record_of(pass_).ops]
            names += [op.name for op in recorded]
            ops += recorded
        tasks = slice(int(passes.first[number]), int(passes.last[number]) + 1)
        start_s, end_s = times_in_pass(iteration.timeline, tasks, inside)
        kernel = first_kernel[whole] + np.arange(len(start_s) // 2, dtype=np.int32)
        # The tasks of an op are its launch and itself.
        stream = inside.program.graph.stream_of[1::2]
        columns.append((kernel, stream, start_s[1::2], end_s[1::2], end_s[0::2]))
    for task, stream_number in [] if pass_name else _other_tasks(iteration, stage):
        names.append(name_of(task))
        ops.append(_longest_op(iteration, iteration.tasks.parts[iteration.tasks.part_of[task]]))
        times = (np.array([times[task]]) for times in _times(iteration.timeline))
        place = np.array([[len(names) - 1], [100 + stream_number]], np.int32)
        columns.append((*place, *times, np.array([np.nan])))
    return StageKernels(names, ops, *map(np.concatenate, zip(*columns, strict=True)))


def times_in_pass(timeline: Timeline, tasks: slice, inside: Timeline) -> tuple[Floats, Floats]:
    """Return the moments in the iteration at which launches and ops of a pass start and end.

    Args:
        timeline: of the iteration.
        tasks: the tasks of the pass. One that buckets cut has several and may wait between them;
            each op is shifted with the one in which it ends.
        inside: of the pass alone.
    """
    ends_s = np.cumsum(timeline.program.duration_s[tasks])
    begins_s = ends_s - timeline.program.duration_s[tasks]
    span = np.searchsorted(ends_s, inside.end_s * (1 - 1e-12))
    shift_s = (timeline.start_s[tasks] - begins_s)[np.minimum(span, len(ends_s) - 1)]
    limits_s = float(timeline.start_s[tasks][0]), float(timeline.end_s[tasks][-1])
    return (inside.start_s + shift_s).clip(*limits_s), (inside.end_s + shift_s).clip(*limits_s)


def _times(timeline: Timeline) -> tuple[Floats, Floats]:
    return timeline.start_s, timeline.end_s


def _other_tasks(iteration: IterationTimeline, stage: int) -> Iterator[tuple[int, int]]:
    """Yield the tasks of a stage that are no passes, and their streams; not work of the host."""
    tasks, duration_s = iteration.tasks, iteration.timeline.program.duration_s
    to_host = TO_HOST * tasks.num_stages + stage
    for stream in (stage, *tasks.concurrent_streams(stage), to_host):
        # What a single rank need not do takes no time.
        for task in np.flatnonzero((tasks.graph.stream_of == stream) & (duration_s > 0)).tolist():
            if not isinstance(tasks.parts[tasks.part_of[task]], PassPart | SynchronizationPart):
                yield task, stream


def _longest_op(iteration: IterationTimeline, part: IterationPart) -> Op | None:
    """Return the op of a part that takes longest; None for a transfer."""
    if not isinstance(part, ReceiveGatherPart | BucketPart | CopyPart | OptimizerPart):
        return None
    seconds = iteration.seconds
    return max(seconds.ops_of(part), key=lambda op: seconds.machine.model.seconds(op.work))
