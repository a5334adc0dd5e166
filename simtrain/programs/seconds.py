"""How long the parts of an iteration take on a machine: passes, transfers, optimizer steps."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cachetools import LRUCache

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine
from simtrain.plan import Plan
from simtrain.programs.pass_time import PassMachine, PassTime
from simtrain.programs.structure import (
    ActionSlot,
    ArrivalSlot,
    BucketSlot,
    IterationStructure,
    MeetingSlot,
    PartSlot,
    Slot,
    StepSlot,
    SynchronizeSlot,
    TransferSlot,
    structure_of,
)
from simtrain.workload.chunk import Parameters, unit_parameters
from simtrain.workload.issue import Segment
from simtrain.workload.ops import Op, collective, total_flops, total_model_flops
from simtrain.workload.optimizer import StepOptions, average, data_reduction, step_ops
from simtrain.workload.passes import Pass
from simtrain.workload.record import record_pass
from simtrain.workload.work import Collective, CollectiveKind

_REMEMBERED = 8192
"""Passes and steps whose seconds a machine remembers."""


@dataclass(frozen=True)
class Machine:
    """A profile, and the seconds of all passes that were run on it by `engine`."""

    model: DurationModel
    engine: Engine = "auto"
    _times: LRUCache[Pass, PassTime] = field(
        default_factory=lambda: LRUCache(_REMEMBERED), repr=False
    )
    _steps: LRUCache[tuple[StepOptions, Parameters], dict[str, float]] = field(
        default_factory=lambda: LRUCache(_REMEMBERED), repr=False
    )

    def time(self, one: Pass) -> PassTime:
        """Where the seconds of a pass go; equal passes are simulated once."""
        found = self._times.get(one)
        if found is None:
            found = self._times[one] = self._run(one)
        return found

    def op_seconds(self, ops: Iterable[Op]) -> float:
        """Seconds of ops run one after another."""
        return math.fsum(self.model.seconds(op.work) for op in ops)

    def step_seconds(self, options: StepOptions, parameters: Parameters) -> dict[str, float]:
        """Seconds of each field of an optimizer step."""
        found = self._steps.get((options, parameters))
        if found is None:
            ops = step_ops(options, parameters)
            found = {name: self.op_seconds(some) for name, some in ops.items()}
            self._steps[options, parameters] = found
        return found

    @property
    def pass_machine(self) -> PassMachine:
        """What decides how long a pass takes."""
        profile = self.model.profile
        slowdown = profile.overlap.slowdown.value
        return PassMachine(self.model.seconds, profile.host.issue.value, slowdown)

    def _run(self, one: Pass) -> PassTime:
        # Loaded with the first pass, since it loads numpy.
        from simtrain.programs.pass_layout import simulate_pass

        return simulate_pass(record_pass(one), self.pass_machine, self.engine)


@dataclass(frozen=True)
class IterationSeconds:
    """Seconds of all that an iteration consists of.

    Args:
        structure: which tasks the iteration has.
        passes: where the seconds of each different pass go.
        steps: seconds of the fields of each different optimizer step.
    """

    plan: Plan
    machine: Machine
    structure: IterationStructure
    passes: dict[ActionSlot, PassTime]
    steps: tuple[dict[str, float], ...]

    @classmethod
    def of(cls, plan: Plan, machine: Machine) -> IterationSeconds:
        """Run each different pass of a plan once."""
        synchronizes = machine.model.profile.host.issue.value > 0
        passes = {ActionSlot(*of): machine.time(one) for of, one in plan.passes.items()}
        options, different = plan.step_options, dict.fromkeys(plan.stage_parameters)
        steps = tuple(machine.step_seconds(options, parameters) for parameters in different)
        return cls(plan, machine, structure_of(plan, synchronizes=synchronizes), passes, steps)

    def of_slot(self, slot: Slot) -> float:
        """How long the tasks of a slot last."""
        match slot:
            case ActionSlot():
                return self.passes[slot].duration_s
            case PartSlot():
                return self._part_s(slot)
            case TransferSlot():
                return self._transfer_s(slot)
            case ArrivalSlot():
                return self.machine.op_seconds([self._arrival()])
            case SynchronizeSlot(num_messages=number):
                # The host posts each message as it launches a kernel, while the device waits.
                return number * self.machine.model.profile.host.issue.value
            case BucketSlot():
                return self.machine.op_seconds(self._bucket_ops(slot))
            case StepSlot():
                return self.steps[slot.step][slot.name]
            case MeetingSlot(name=name):
                return max(step.get(name, 0.0) for step in self.steps)

    def flops(self, *, recompute: bool) -> int:
        """FLOPs of all GPUs in an iteration: all that run, or the paper's count of the model's.

        They differ by what is computed twice, and by what fused attention leaves out.
        """
        per_replica = sum(
            times * pass_flops(one)[int(recompute)] for one, times in self.plan.different_passes()
        )
        return per_replica * self.plan.mesh.size("tp", "dp")

    def extrapolated(self) -> tuple[str, ...]:
        """Names of the ops that lie outside what the profile was fitted on."""
        works = {(op.name, op.work) for op in self._all_ops()}
        is_extrapolated = self.machine.model.is_extrapolated
        return tuple(sorted({name for name, work in works if is_extrapolated(work)}))

    def _all_ops(self) -> Iterator[Op]:
        for one, _ in self.plan.different_passes():
            for segment in set(record_pass(one).segments):
                yield from segment.ops
        for step in self.plan.steps:
            yield from itertools.chain.from_iterable(step.values())
        if self.structure.arrives and self.plan.mesh.pp > 1:
            yield self._arrival()
        if self.plan.has_buckets:
            yield from self._bucket_ops(BucketSlot(0, 0, 0, is_last=False))

    def _part_s(self, slot: PartSlot) -> float:
        """A layer of a last backward pass; the last takes what follows it too."""
        time = self.passes[ActionSlot(slot.chunk, "B", slot.keeps)]
        ends = (0.0, *time.layer_ends_s[:-1], time.duration_s)
        return ends[slot.number + 1] - ends[slot.number]

    def _transfer_s(self, slot: TransferSlot) -> float:
        """One rank's part of a stage's output, over the link that the two stages share."""
        split, batch = self.plan.scenario.parallelism, self.plan.microbatch
        divided = split.sequence_parallel or split.scatter_gather
        num_bytes = batch.activation_bytes / (batch.tensor.num_ranks if divided else 1)
        return self.machine.model.transfer_s(num_bytes, slot.levels_crossed, slot.num_sends)

    def _arrival(self) -> Op:
        """The all-gather of a tensor that each tensor-parallel rank received 1/t of."""
        batch = self.plan.microbatch
        work = Collective(CollectiveKind.ALL_GATHER, batch.activation_bytes, batch.tensor)
        return collective("gather on arrival", work)

    def _bucket_ops(self, slot: BucketSlot) -> tuple[Op, ...]:
        """A layer's gradients, and after the stage's last layer those of what is no layer."""
        plan = self.plan
        parameters = [*dict.fromkeys(plan.stage_parameters)][slot.step]
        layers = unit_parameters(plan.slices.different[slot.chunk], plan.microbatch)
        number = layers[slot.layer] + (parameters.root if slot.is_last else 0)
        options = plan.step_options
        return average(options, number) + data_reduction(options, number)


@functools.lru_cache(maxsize=4096)
def pass_flops(one: Pass) -> tuple[int, int]:
    """FLOPs of a pass's matrix products: the paper's count of the model's, and all that run."""
    numbers = Counter(record_pass(one).segments)
    counts = [(number, *_segment_flops(segment)) for segment, number in numbers.items()]
    return (
        sum(number * model for number, model, _ in counts),
        sum(number * every for number, _, every in counts),
    )


@functools.lru_cache(maxsize=8192)
def _segment_flops(segment: Segment) -> tuple[int, int]:
    return total_model_flops(segment.ops), total_flops(segment.ops)
