"""The ops of a stage in an iteration: their number, time and exposed time.

Exposed times add up to the stage's `Breakdown`, field by field, except for the wait for launches
and the bubble, in which the stage runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine, exposed_seconds
from simtrain.memory.replay import IterationTimeline
from simtrain.programs.parts import (
    BucketPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.programs.seconds import IterationSeconds
from simtrain.report.breakdown import field_of_step
from simtrain.workload.issue import Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.work import Work

OpWork: TypeAlias = Work | TransferPart | SynchronizationPart
_MESSAGES = (
    # In the order of `IterationTasks.concurrent_streams`: forward out and in, backward out and in.
    ("activations sent", Phase.FORWARD),
    ("activations received", Phase.FORWARD),
    ("gradients sent", Phase.INPUT_GRADIENT),
    ("gradients received", Phase.INPUT_GRADIENT),
)


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
            case TransferPart(num_sends, levels_crossed):
                return model.transfer_s(sent_bytes, levels_crossed, num_sends)
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

    def add(self, count: int, total_s: float, exposed_s: float) -> None:
        """Add further ops."""
        self.count += count
        self.total_s += total_s
        self.exposed_s += exposed_s


def stage_ops(
    seconds: IterationSeconds, iteration: IterationTimeline, stage: int, engine: Engine
) -> dict[OpKey, OpSeconds]:
    """Return the ops of a simulated iteration on a rank of a stage."""
    found, tasks = _StageOps(seconds), iteration.tasks
    for part, number in zip(tasks.parts, tasks.num_parts[stage].tolist(), strict=True):
        if number:
            found.add_own(part, number)
    found.add_concurrent(iteration, stage)
    return found.rows


@dataclass
class _StageOps:
    seconds: IterationSeconds
    rows: dict[OpKey, OpSeconds] = field(default_factory=dict)

    def add(self, key: OpKey, count: int, total_s: float, exposed_s: float) -> None:
        self.rows.setdefault(key, OpSeconds()).add(count, total_s, exposed_s)

    def add_own(self, part: IterationPart, number: int) -> None:
        """Add a part on the stage's compute stream; a cut pass counts with its first span."""
        match part:
            case PassPart(span=None):
                self.add_pass(part, number)
            case PassPart(span=0):
                self.add_pass(PassPart(part.chunk, part.kind, part.saves_all), number)
            case SynchronizationPart():
                total_s = number * self.seconds.of_part(part)
                one = SynchronizationPart(num_messages=1)
                key = OpKey("post messages", Phase.FORWARD, one, "pipeline_communication_s")
                self.add(key, number * part.num_messages, total_s, total_s)
            case ReceiveGatherPart():
                part_s = number * self.seconds.of_part(part)
                self.add_ops(part, "pipeline_communication_s", number, part_s, part_s)
            case OptimizerPart(name=name):
                part_s = number * self.seconds.of_part(part)
                self.add_ops(part, field_of_step(name), number, part_s, part_s)

    def add_pass(self, part: PassPart, number: int) -> None:
        """Add the ops of a pass that runs `number` times."""
        ops, total_s, exposed_s = self.seconds.ops_of_pass(part)
        for op, op_s, op_exposed_s in zip(ops, total_s.tolist(), exposed_s.tolist(), strict=True):
            key = OpKey(op.name, op.phase, op.work, _field_of(op))
            self.add(key, number, number * op_s, number * op_exposed_s)

    def add_ops(
        self,
        part: ReceiveGatherPart | BucketPart | OptimizerPart,
        field: str,
        number: int,
        total_s: float,
        exposed_s: float,
    ) -> None:
        """Divide the time of a part among its ops, which run one after another."""
        part_s = self.seconds.of_part(part)
        for op in self.seconds.ops_of(part):
            op_s = self.seconds.machine.model.seconds(op.work)
            share = op_s / part_s if part_s else 0.0
            key = OpKey(op.name, op.phase, op.work, field)
            self.add(key, number, share * total_s, share * exposed_s)

    def add_concurrent(self, iteration: IterationTimeline, stage: int) -> None:
        """Add the stage's transfers, buckets and all-reduces on other streams."""
        tasks, timeline = iteration.tasks, iteration.timeline
        streams, total_s = tasks.concurrent_streams(stage), timeline.end_s - timeline.start_s
        exposed_s = exposed_seconds(timeline, (stage, *streams))
        for place, stream in enumerate(streams):
            own = np.flatnonzero(tasks.graph.stream_of == stream)
            for number in np.unique(tasks.part_of[own]).tolist():
                equal = own[tasks.part_of[own] == number]
                sums = float(total_s[equal].sum()), float(exposed_s[equal].sum())
                match tasks.parts[number]:
                    case TransferPart() as part:
                        name, phase = _MESSAGES[place]
                        key = OpKey(name, phase, part, "pipeline_communication_s")
                        self.add(key, len(equal), *sums)
                    case BucketPart() as part:
                        self.add_ops(part, "data_communication_s", len(equal), *sums)
                    case OptimizerPart(name=name) as part:
                        self.add_ops(part, field_of_step(name), len(equal), *sums)


def _field_of(op: Op) -> str:
    """Return the field of `Breakdown` that includes an op of a pass."""
    match stream_of(op):
        case Stream.COMPUTE:
            return "recompute_s" if op.phase is Phase.RECOMPUTE else "compute_s"
        case Stream.COMMUNICATION:
            return "tensor_communication_s"
    return "data_communication_s"
