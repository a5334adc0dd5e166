"""The ops of a stage in an iteration: their number, time and exposed time.

Exposed times add up to the stage's `Breakdown`, field by field, except for the wait for launches
and the bubble, in which the stage runs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from simtrain.base.values import dataclass
from simtrain.durations.model import DurationModel
from simtrain.engine import exposed_seconds
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.parts import (
    BucketPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.iteration.programs.pass_tasks import seconds_of_ops
from simtrain.iteration.programs.seconds import IterationSeconds, OpsPart
from simtrain.iteration.report.breakdown import field_of
from simtrain.iteration.report.spans import Spans, StageStream
from simtrain.workload.issue import Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.passes import record_of
from simtrain.workload.work import Work

OpWork: TypeAlias = Work | TransferPart | SynchronizationPart
_MESSAGES = {
    StageStream.SENDS_FORWARD: ("activations sent", Phase.FORWARD),
    StageStream.RECEIVES_FORWARD: ("activations received", Phase.FORWARD),
    StageStream.SENDS_BACKWARD: ("gradients sent", Phase.INPUT_GRADIENT),
    StageStream.RECEIVES_BACKWARD: ("gradients received", Phase.INPUT_GRADIENT),
}


@dataclass(frozen=True, slots=True)
class OpKey:
    """The key of a row: ops with the same name, phase, work and field of `Breakdown`."""

    name: str
    phase: Phase
    work: OpWork
    field: str

    def alone_s(self, model: DurationModel, sent_bytes: float) -> float:
        """Return the time of one op without concurrent ops; 0 for work of the host."""
        match self.work:
            case TransferPart() as part:
                return part.seconds(model, sent_bytes)
            case SynchronizationPart():
                return 0.0
            case work:
                return model.seconds(work)


@dataclass(slots=True)
class OpSeconds:
    """The time of equal ops in an iteration.

    Args:
        count: number of times that a rank of the stage runs the op.
        total_s: time for which they run, including the slowdown by concurrent ops.
        exposed_s: exposed time.
    """

    count: int = 0
    total_s: float = 0.0
    exposed_s: float = 0.0


_Ops: TypeAlias = tuple[OpKey, int, float, float]
"""Equal ops: their key, number, time and exposed time."""


def stage_ops(iteration: IterationTimeline, spans: Spans, stage: int) -> dict[OpKey, OpSeconds]:
    """Return the ops of a simulated iteration on a rank of a stage."""
    rows: dict[OpKey, OpSeconds] = {}
    ops = itertools.chain(
        _own_ops(iteration, stage), _concurrent_ops(iteration, spans.of_stage(stage))
    )
    for key, count, total_s, exposed_s in ops:
        row = rows.setdefault(key, OpSeconds())
        row.count += count
        row.total_s += total_s
        row.exposed_s += exposed_s
    return rows


def _own_ops(iteration: IterationTimeline, stage: int) -> Iterator[_Ops]:
    """Yield the ops on the stage's compute stream; a cut pass counts with its first span."""
    tasks, seconds = iteration.tasks, iteration.seconds
    for part, number in zip(tasks.parts, tasks.num_parts[stage].tolist(), strict=True):
        if not number:
            continue
        match part:
            case PassPart(span=None | 0):
                pass_ = seconds.plan.variants[part.variant]
                times_s = seconds_of_ops(seconds.machine.timeline(pass_))
                for op, op_s, op_exposed_s in zip(record_of(pass_).ops, *times_s, strict=True):
                    key = OpKey(op.name, op.phase, op.work, _field_of(op))
                    yield key, number, number * op_s, number * op_exposed_s
            case SynchronizationPart():
                part_s = number * seconds.of_part(part)
                message = SynchronizationPart(num_messages=1)
                key = OpKey("post messages", Phase.FORWARD, message, field_of(part))
                yield key, number * part.num_messages, part_s, part_s
            case ReceiveGatherPart() | OptimizerPart():
                part_s = number * seconds.of_part(part)
                yield from _divided(seconds, part, number, part_s, part_s)


def _concurrent_ops(iteration: IterationTimeline, spans: Spans) -> Iterator[_Ops]:
    """Yield the transfers, buckets and all-reduces of a stage's spans on other streams."""
    tasks = iteration.tasks
    by_stream = spans.task[np.argsort(spans.stream, kind="stable")]
    streams = dict.fromkeys(tasks.graph.stream_of[by_stream].tolist())
    exposed_s = exposed_seconds(iteration.timeline, streams)[spans.task]
    part_of, total_s = tasks.part_of[spans.task], spans.seconds
    for stream in [*StageStream][1:]:
        on_stream = np.flatnonzero(spans.stream == stream)
        for number in np.unique(part_of[on_stream]).tolist():
            equal = on_stream[part_of[on_stream] == number]
            sums = float(total_s[equal].sum()), float(exposed_s[equal].sum())
            match tasks.parts[number]:
                case TransferPart() as part:
                    yield OpKey(*_MESSAGES[stream], part, field_of(part)), len(equal), *sums
                case (BucketPart() | OptimizerPart()) as part:
                    yield from _divided(iteration.seconds, part, len(equal), *sums)


def _divided(
    seconds: IterationSeconds, part: OpsPart, number: int, total_s: float, exposed_s: float
) -> Iterator[_Ops]:
    """Divide the time of a part among its ops, which run one after another."""
    part_s = seconds.of_part(part)
    for op in seconds.ops_of(part):
        op_s = seconds.machine.model.seconds(op.work)
        share = op_s / part_s if part_s else 0.0
        key = OpKey(op.name, op.phase, op.work, field_of(part))
        yield key, number, share * total_s, share * exposed_s


def _field_of(op: Op) -> str:
    """Return the field of `Breakdown` that includes an op of a pass."""
    match stream_of(op):
        case Stream.COMPUTE:
            return "recompute_s" if op.phase is Phase.RECOMPUTE else "compute_s"
        case Stream.COMMUNICATION:
            return "tensor_communication_s"
    return "data_communication_s"
