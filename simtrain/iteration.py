"""An iteration before it runs: what a scenario's actions do, cost and wait for."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simtrain.costs.price import Pricer
from simtrain.engine import Engine, Pattern
from simtrain.hardware.placement import Placement
from simtrain.hardware.profile import HardwareProfile
from simtrain.programs.chunk import ActionTime
from simtrain.programs.iteration_shape import (
    ActionSlot,
    ArrivalSlot,
    BucketSlot,
    IterationShape,
    MeetingSlot,
    PartSlot,
    Slot,
    StepSlot,
    SynchronizeSlot,
    TransferSlot,
)
from simtrain.programs.passes import Pass, Passes
from simtrain.programs.pipeline import PipelineTasks
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import Action, Kind, Schedule
from simtrain.workload.chunk import Chunk
from simtrain.workload.host import HostOp
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Collective, CollectiveKind, Group, Op, Phase
from simtrain.workload.optimizer import average, data_reduction, step_ops
from simtrain.workload.parameters import StageParameters, layer_parameters, stage_parameters
from simtrain.workload.recompute import KEEP_ALL
from simtrain.workload.shape import LayerShape
from simtrain.workload.zero import DividedStates

_KINDS: tuple[Kind, ...] = ("F", "B")
_REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class Known:
    """What has been priced on a profile: passes by layers and groups, steps by what they divide."""

    passes: dict[Any, Passes] = field(default_factory=dict)
    steps: dict[Any, dict[str, float]] = field(default_factory=dict)

    def make_room(self) -> None:
        """Forget all when it is much, so that a long sweep does not grow."""
        if len(self.passes) >= _REMEMBERED:
            self.passes.clear()
            self.steps.clear()


@dataclass
class Iteration:
    """A scenario taken apart into chunks, and their passes simulated once each.

    Its recompute is settled: neither strategy nor `keep_microbatches` is left to be chosen.
    `engine` runs the passes. `known` may be shared by iterations on one profile.
    """

    scenario: Scenario
    profile: HardwareProfile
    kept_per_stage: tuple[int, ...] | None = None
    """Of each stage's outstanding forward passes, how many keep everything; None for the number
    that the scenario gives to all stages."""
    engine: Engine = "auto"
    known: Known = field(default_factory=Known)
    shape: LayerShape = field(init=False)
    pricer: Pricer = field(init=False)

    def __post_init__(self) -> None:
        self.shape = LayerShape.of(self.scenario)
        placement = Placement.of(self.scenario, self.profile.cluster.gpus_per_node.value)
        self.pricer = Pricer(self.profile, placement)

    @cached_property
    def schedule(self) -> Schedule:
        """The order in which each stage acts."""
        return self.tasks_shape.schedule

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunk of each virtual stage; the ends carry embedding and head."""
        split, scenario = self.scenario.parallelism, self.scenario
        last = split.pipeline - 1
        sizes = [scenario.layers_of_chunk(min(1, last))] * split.pipeline
        sizes[0], sizes[last] = scenario.layers_of_chunk(0), scenario.layers_of_chunk(last)
        inner = {size: Chunk(size, reads_batch=True) for size in set(sizes)}
        chunks = [inner[size] for size in sizes] * split.interleave
        only = len(chunks) == 1
        chunks[-1] = Chunk(sizes[last], has_head=True, reads_batch=True)
        chunks[0] = Chunk(sizes[0], has_embedding=True, has_head=only, reads_batch=True)
        return tuple(chunks)

    def chunk(self, virtual_stage: int) -> Chunk:
        """The layers of a virtual stage, and what it carries besides."""
        return self.chunks[virtual_stage]

    def recompute(self, action: Action) -> RecomputePolicy:
        """What an action keeps and runs again: the scenario's policy, or nothing again."""
        return self._policy(self.keeps(action))

    def order(self, action: Action) -> IssueOrder:
        """The ops that an action runs."""
        return self.passes.order(self.pass_of(action))

    def action_time(self, action: Action) -> ActionTime:
        """Where the seconds of an action go; equal actions are simulated once."""
        return self.passes.time(self.pass_of(action))

    def pass_of(self, action: Action) -> Pass:
        """What an action runs."""
        return Pass(self.chunk(action.virtual_stage), action.kind, self.recompute(action))

    @cached_property
    def passes(self) -> Passes:
        """The passes of the layers."""
        hide, divided = self.scenario.overlap.tensor_parallel, self._divided()
        groups = self.pricer.group(Group.TENSOR), divided and self.pricer.group(Group.DATA)
        key = self.shape, hide, divided, groups
        if key not in self.known.passes:
            self.known.make_room()
            self.known.passes[key] = Passes(self.shape, hide, divided, self.pricer, self.engine)
        return self.known.passes[key]

    def parameters(self, stage: int) -> StageParameters:
        """Parameters of one rank of a stage."""
        chunks = self.chunks[stage :: self.scenario.parallelism.pipeline]
        return stage_parameters(self.shape, chunks, tied=self.scenario.model.tied_embeddings)

    @cached_property
    def stage_parameters(self) -> tuple[StageParameters, ...]:
        """Parameters of one rank of each stage."""
        return tuple(map(self.parameters, range(self.scenario.parallelism.pipeline)))

    @cached_property
    def tasks_shape(self) -> IterationShape:
        """What decides which tasks the iteration has."""
        split, scenario = self.scenario.parallelism, self.scenario
        overlaps = scenario.overlap.pipeline
        return IterationShape(
            scenario.schedule,
            split.pipeline,
            split.interleave,
            scenario.num_microbatches,
            chunks=_numbered(self.chunks),
            steps=_numbered(self.stage_parameters),
            step_fields=tuple(frozenset(step) for step in self._steps),
            kept_per_stage=self._kept_per_stage(),
            same_node=self._same_node(),
            overlap=overlaps,
            arrives=split.scatter_gather and split.tensor > 1,
            synchronizes=not overlaps and self.profile.host.issue.value > 0,
            part_layers=self._part_layers(),
        )

    def pattern(self) -> tuple[Pattern, PipelineTasks]:
        """The tasks of the whole iteration, and which of them are the pipeline's."""
        return self.tasks_shape.pattern()

    def seconds(self, slot: Slot) -> float:
        """How long the tasks of a slot last."""
        match slot:
            case ActionSlot():
                return self._time(slot).duration_s
            case PartSlot(number=number):
                return self._part_s(self._time(ActionSlot(slot.chunk, "B", slot.keeps)), number)
            case TransferSlot():
                return self._transfer_s(slot)
            case ArrivalSlot():
                return self._arrival_s()
            case SynchronizeSlot(num_messages=number):
                # The host posts each message as it launches a kernel, while the device waits.
                return number * self.profile.host.issue.value
            case BucketSlot():
                return self._bucket_s(slot)
            case StepSlot():
                return self._steps[slot.step][slot.name]
            case MeetingSlot(name=name):
                return max(step.get(name, 0.0) for step in self._steps)

    def flops(self, *, recompute: bool) -> int:
        """FLOPs of all GPUs in an iteration: all that run, or the paper's count of the model's.

        They differ by what is computed twice, and by what fused attention leaves out.
        """
        per_replica = sum(
            number * self.passes.flops(one, recompute=recompute)
            for one, number in self.different_passes()
        )
        return per_replica * self.scenario.parallelism.tensor * self.scenario.parallelism.data

    def different_passes(self) -> Iterator[tuple[Pass, int]]:
        """The different passes of a replica, and how many there are of each."""
        for (chunk, keeps), number in self.num_passes().items():
            for kind in _KINDS:
                yield Pass(chunk, kind, self._policy(keeps)), number

    def num_passes(self) -> Counter[tuple[Chunk, bool]]:
        """Forward passes of each different chunk that keep everything (True), and the others.

        There are as many backward passes.
        """
        keeping = Counter(self.chunks[virtual_stage] for virtual_stage, _ in self._kept)
        numbers: Counter[tuple[Chunk, bool]] = Counter()
        for chunk, times in Counter(self.chunks).items():
            numbers[chunk, True] = keeping[chunk]
            numbers[chunk, False] = times * self.scenario.num_microbatches - keeping[chunk]
        return +numbers

    def keeps(self, action: Action) -> bool:
        """Whether the action's microbatch is one of those that keep everything on its stage."""
        return bool(self._kept) and (action.virtual_stage, action.microbatch) in self._kept

    @cached_property
    def _kept(self) -> frozenset[tuple[int, int]]:
        """Virtual stage and microbatch of the forward passes that keep everything."""
        return self.tasks_shape.kept() if any(self._kept_per_stage()) else frozenset()

    def _kept_per_stage(self) -> tuple[int, ...]:
        if self.kept_per_stage is not None:
            return self.kept_per_stage
        kept = self.scenario.recompute.keep_microbatches
        assert isinstance(kept, int), "how many fit is found before"
        return (kept,) * self.scenario.parallelism.pipeline

    def _policy(self, keeps: bool) -> RecomputePolicy:
        return KEEP_ALL if keeps else self.scenario.recompute

    def _time(self, slot: ActionSlot) -> ActionTime:
        chunk = self.different_chunks[slot.chunk]
        return self.passes.time(Pass(chunk, slot.kind, self._policy(slot.keeps)))

    @cached_property
    def different_chunks(self) -> tuple[Chunk, ...]:
        """The chunks that `tasks_shape` numbers."""
        return tuple(dict.fromkeys(self.chunks))

    @property
    def keeps_any(self) -> bool:
        """Whether some forward passes keep everything though the scenario recomputes."""
        return any(self._kept_per_stage())

    def _divided(self) -> DividedStates | None:
        """What ZeRO divides within the passes of the only stage that it then has."""
        if self.scenario.memory.zero_stage < 2:
            return None
        parameters = self.parameters(0)
        others = parameters.total - parameters.layers
        return DividedStates.of(self.scenario, layer_parameters(self.shape), others)

    def _same_node(self) -> tuple[bool, ...]:
        """Whether each stage shares a node with the next, the last with the first."""
        last = self.scenario.parallelism.pipeline - 1
        share = self.pricer.placement.stages_share_node
        return *(share(stage, stage + 1) for stage in range(last)), share(last, 0)

    def _transfer_s(self, slot: TransferSlot) -> float:
        """One rank's part of a stage's output, over the link that the two stages share."""
        split = self.scenario.parallelism
        divided = split.sequence_parallel or split.scatter_gather
        num_bytes = self.shape.activation_bytes / (self.shape.tensor if divided else 1)
        return self.pricer.transfer_s(num_bytes, slot.same_node, slot.num_sends)

    def _arrival_s(self) -> float:
        """The all-gather of a tensor that each tensor-parallel rank received 1/t of."""
        gather = Collective(
            "gather on arrival",
            CollectiveKind.ALL_GATHER,
            self.shape.activation_bytes,
            self.shape.tensor,
            Phase.FORWARD,
        )
        return self.pricer.cost(gather).duration_s

    @cached_property
    def _steps(self) -> tuple[dict[str, float], ...]:
        """Seconds of each field that a `StageStep` has, for each of the different stages."""
        scenario, split = self.scenario, self.scenario.parallelism
        grid = split.tensor, split.sequence_parallel, split.pipeline, split.data
        told = scenario.memory, scenario.precision, scenario.overlap, scenario.model.tied_embeddings
        known = self.known.steps
        steps = {(one, grid, told): one for one in self.stage_parameters}
        known |= {key: self._step(one) for key, one in steps.items() if key not in known}
        return tuple(known[key] for key in steps)

    def _step(self, parameters: StageParameters) -> dict[str, float]:
        """Seconds of the fields of one `StageStep`, and of the meetings that it takes part in."""
        ops = step_ops(self.scenario, parameters)
        overlapped = self._has_buckets
        norm_reduction = [op for op in ops.gradient_norm if isinstance(op, Collective)]
        norm = [op for op in ops.gradient_norm if not isinstance(op, Collective)]
        there: dict[str, Sequence[Op | HostOp]] = {
            "average": () if overlapped else ops.average,
            "data_reduction": () if overlapped else ops.data_reduction,
            "sequence_parallel": ops.sequence_parallel_reduction,
            "embedding": ops.embedding_reduction,
            "to_host": ops.to_host,
            "norm": norm,
            "norm_reduction": norm_reduction,
            "update": ops.update,
            "parameter_gather": ops.parameter_gather,
        }
        return {name: self._seconds(some) for name, some in there.items() if some}

    def _seconds(self, ops: Iterable[Op | HostOp]) -> float:
        return math.fsum(self.pricer.cost(op).duration_s for op in ops)

    @property
    def _has_buckets(self) -> bool:
        """Whether the sums over all microbatches are reduced beside the last backward pass."""
        scenario = self.scenario
        replicas = scenario.parallelism.data > 1 and scenario.memory.zero_stage < 2
        return replicas and scenario.overlap.data_parallel

    def _part_layers(self) -> tuple[int, ...] | None:
        return tuple(chunk.num_layers for chunk in self.chunks) if self._has_buckets else None

    def _bucket_s(self, slot: BucketSlot) -> float:
        """A layer's gradients, and after the stage's last layer those of what is no layer."""
        parameters = tuple(dict.fromkeys(self.stage_parameters))[slot.step]
        rest = parameters.total - parameters.layers
        number = layer_parameters(self.shape) + (rest if slot.is_last else 0)
        return self._seconds(average(self.scenario, number) + data_reduction(self.scenario, number))

    def _part_s(self, time: ActionTime, number: int) -> float:
        ends = (0.0, *time.layer_ends_s[:-1], time.duration_s)
        return tuple(end - start for start, end in itertools.pairwise(ends))[number]


def _numbered(values: Sequence[Any]) -> tuple[int, ...]:
    """For each value the number of its first like among the different ones."""
    numbers: dict[Any, int] = {}
    return tuple(numbers.setdefault(value, len(numbers)) for value in values)
