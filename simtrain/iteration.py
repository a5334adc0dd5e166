"""An iteration before it runs: what a scenario's actions do, cost and wait for."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from simtrain.costs.price import Pricer
from simtrain.engine import Program
from simtrain.hardware.placement import Placement
from simtrain.hardware.profile import HardwareProfile
from simtrain.programs.chunk import ActionTime, simulate_chunk
from simtrain.programs.iteration import Bucket, StageStep, iteration_program
from simtrain.programs.pipeline import PipelineCosts, PipelineTasks
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import Action, Kind, Message, Schedule, kept_forwards
from simtrain.schedules import build as build_schedule
from simtrain.workload.chunk import Chunk
from simtrain.workload.host import HostOp
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import (
    Collective,
    CollectiveKind,
    Op,
    Phase,
    total_flops,
    total_model_flops,
)
from simtrain.workload.optimizer import average, data_reduction, step_ops
from simtrain.workload.parameters import StageParameters, layer_parameters, stage_parameters
from simtrain.workload.recompute import KEEP_ALL
from simtrain.workload.shape import LayerShape
from simtrain.workload.zero import DividedStates

_KINDS: tuple[Kind, ...] = ("F", "B")


@dataclass
class Iteration:
    """A scenario taken apart into chunks, and their passes simulated once each.

    Its recompute is settled: neither strategy nor `keep_microbatches` is left to be chosen.
    """

    scenario: Scenario
    profile: HardwareProfile
    kept_per_stage: tuple[int, ...] | None = None
    """Of each stage's outstanding forward passes, how many keep everything; None for the number
    that the scenario gives to all stages."""
    shape: LayerShape = field(init=False)
    pricer: Pricer = field(init=False)
    schedule: Schedule = field(init=False)
    _kept: frozenset[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        parallelism = self.scenario.parallelism
        self.shape = LayerShape.of(self.scenario)
        placement = Placement.of(self.scenario, self.profile.cluster.gpus_per_node.value)
        self.pricer = Pricer(self.profile, placement)
        self.schedule = build_schedule(
            self.scenario.schedule,
            parallelism.pipeline,
            parallelism.interleave,
            self.scenario.num_microbatches,
        )
        self._kept = self._find_kept()
        self.chunk = functools.cache(self._chunk)
        self._order = functools.cache(self._issue)
        self._action_time = functools.cache(self._simulate)

    def _chunk(self, virtual_stage: int) -> Chunk:
        """Layers are contiguous by virtual stage; the ends carry embedding and head."""
        last = self.schedule.num_virtual_stages - 1
        return Chunk(
            self.scenario.layers_of_chunk(virtual_stage),
            has_embedding=virtual_stage == 0,
            has_head=virtual_stage == last,
            reads_batch=True,
        )

    def recompute(self, action: Action) -> RecomputePolicy:
        """What an action keeps and runs again: the scenario's policy, or nothing again."""
        return KEEP_ALL if self.keeps(action) else self.scenario.recompute

    def order(self, action: Action) -> IssueOrder:
        """The ops that an action runs."""
        return self._order(self.chunk(action.virtual_stage), action.kind, self.keeps(action))

    def action_time(self, action: Action) -> ActionTime:
        """Where the seconds of an action go; equal actions are simulated once."""
        return self._action_time(self.chunk(action.virtual_stage), action.kind, self.keeps(action))

    def parameters(self, stage: int) -> StageParameters:
        """Parameters of one rank of a stage."""
        chunks = tuple(
            self.chunk(stage + number * self.schedule.num_stages)
            for number in range(self.schedule.num_chunks)
        )
        return stage_parameters(self.shape, chunks, tied=self.scenario.model.tied_embeddings)

    def program(self) -> tuple[Program, PipelineTasks]:
        """The tasks of the whole iteration, and which of them are the pipeline's."""
        steps = [self._step(stage) for stage in range(self.schedule.num_stages)]
        overlap = self.scenario.overlap.pipeline
        return iteration_program(self.schedule, self.costs(), steps, overlap=overlap)

    def costs(self) -> PipelineCosts:
        """Seconds of actions and messages."""
        return PipelineCosts(
            action_s=lambda action: self.action_time(action).duration_s,
            transfer_s=self._transfer_s,
            # The host posts each message as it launches a kernel, while the device waits.
            message_overhead_s=self.profile.host.issue.value,
            arrival_s=self._arrival() if self.scenario.parallelism.scatter_gather else None,
            parts_s=self._parts_s,
        )

    def flops(self, *, recompute: bool) -> int:
        """FLOPs of all GPUs in an iteration: all that run, or the paper's count of the model's.

        They differ by what is computed twice, and by what fused attention leaves out.
        """
        per_replica = sum(
            number * _flops(self._order(self.chunk(stage), kind, keeps), recompute=recompute)
            for (stage, keeps), number in self._num_microbatches().items()
            for kind in _KINDS
        )
        return per_replica * self.scenario.parallelism.tensor * self.scenario.parallelism.data

    def _num_microbatches(self) -> Counter[tuple[int, bool]]:
        """Microbatches of each virtual stage that keep everything (True), and the others."""
        keeping = Counter(virtual_stage for virtual_stage, _ in self._kept)
        numbers: Counter[tuple[int, bool]] = Counter()
        for stage in range(self.schedule.num_virtual_stages):
            numbers[stage, True] = keeping[stage]
            numbers[stage, False] = self.scenario.num_microbatches - keeping[stage]
        return +numbers

    def keeps(self, action: Action) -> bool:
        """Whether the action's microbatch is one of those that keep everything on its stage."""
        return bool(self._kept) and (action.virtual_stage, action.microbatch) in self._kept

    def _find_kept(self) -> frozenset[tuple[int, int]]:
        """Virtual stage and microbatch of the forward passes that keep everything."""
        per_stage = self.kept_per_stage
        if per_stage is None:
            kept = self.scenario.recompute.keep_microbatches
            assert isinstance(kept, int), "how many fit is found before"
            per_stage = (kept,) * self.schedule.num_stages
        return frozenset(
            (action.virtual_stage, action.microbatch)
            for actions, number in zip(self.schedule.ranks, per_stage, strict=True)
            if number
            for action in kept_forwards(actions, number)
        )

    def _issue(self, chunk: Chunk, kind: Kind, keeps: bool) -> IssueOrder:
        one_way = chunk.forward if kind == "F" else chunk.backward
        recompute = KEEP_ALL if keeps else self.scenario.recompute
        hide = self.scenario.overlap.tensor_parallel
        return one_way(self.shape, recompute, hide=hide, divided=self._divided())

    def _divided(self) -> DividedStates | None:
        """What ZeRO divides within the passes of the only stage that it then has."""
        parameters = self.parameters(0)
        others = parameters.total - parameters.layers
        return DividedStates.of(self.scenario, layer_parameters(self.shape), others)

    def _simulate(self, chunk: Chunk, kind: Kind, keeps: bool) -> ActionTime:
        return simulate_chunk(self._order(chunk, kind, keeps), self.pricer)

    def _transfer_s(self, message: Message, num_sharing: int) -> float:
        """One rank's part of a stage's output, over the link that the two stages share."""
        split = self.scenario.parallelism.sequence_parallel or (
            self.scenario.parallelism.scatter_gather
        )
        num_bytes = self.shape.activation_bytes / (self.shape.tensor if split else 1)
        return self.pricer.transfer_s(num_bytes, message.sender, message.receiver, num_sharing)

    def _arrival(self) -> _Arrival | None:
        """The all-gather of a tensor that each tensor-parallel rank received 1/t of."""
        if self.shape.tensor == 1:
            return None
        gather = Collective(
            "gather on arrival",
            CollectiveKind.ALL_GATHER,
            self.shape.activation_bytes,
            self.shape.tensor,
            Phase.FORWARD,
        )
        return _Arrival(self.pricer.cost(gather).duration_s)

    def _step(self, stage: int) -> StageStep:
        parameters = self.parameters(stage)
        ops = step_ops(self.scenario, parameters)
        overlapped = self._has_buckets
        *norm, norm_reduction = self._with_reduction(ops.gradient_norm)
        return StageStep(
            average_s=0.0 if overlapped else self._seconds(ops.average),
            data_reduction_s=0.0 if overlapped else self._seconds(ops.data_reduction),
            buckets=self._buckets(stage, parameters) if overlapped else (),
            sequence_parallel_s=self._seconds(ops.sequence_parallel_reduction),
            embedding_s=self._seconds(ops.embedding_reduction) if ops.embedding_reduction else None,
            to_host_s=self._seconds(ops.to_host),
            norm_s=math.fsum(norm),
            norm_reduction_s=norm_reduction,
            update_s=self._seconds(ops.update),
            parameter_gather_s=self._seconds(ops.parameter_gather),
        )

    def _with_reduction(self, ops: tuple[Op, ...]) -> list[float]:
        """Seconds of each op, the collective last (0 where a rank is alone)."""
        local = [self.pricer.cost(op).duration_s for op in ops if not isinstance(op, Collective)]
        return [*local, self._seconds(tuple(op for op in ops if isinstance(op, Collective)))]

    def _seconds(self, ops: Iterable[Op | HostOp]) -> float:
        return math.fsum(self.pricer.cost(op).duration_s for op in ops)

    @property
    def _has_buckets(self) -> bool:
        """Whether the sums over all microbatches are reduced beside the last backward pass."""
        scenario = self.scenario
        replicas = scenario.parallelism.data > 1 and scenario.memory.zero_stage < 2
        return replicas and scenario.overlap.data_parallel

    def _buckets(self, stage: int, parameters: StageParameters) -> tuple[Bucket, ...]:
        """One bucket a layer, in the order in which the last microbatch's gradients come.

        What is no layer (embedding, final layer norm) goes with the chunk's last layer.
        """
        layer = layer_parameters(self.shape)
        rest = parameters.total - parameters.layers
        last_actions = self._last_backwards(stage)
        buckets: list[Bucket] = []
        for place, action in enumerate(last_actions):
            num_parts = len(self._parts_s(action) or ())
            for part in range(num_parts):
                ends_stage = place == len(last_actions) - 1 and part == num_parts - 1
                num_parameters = layer + (rest if ends_stage else 0)
                seconds = self._seconds(
                    average(self.scenario, num_parameters)
                    + data_reduction(self.scenario, num_parameters)
                )
                buckets.append(Bucket(action, part, seconds))
        return tuple(buckets)

    def _last_backwards(self, stage: int) -> list[Action]:
        last = self.scenario.num_microbatches - 1
        return [a for a in self.schedule.ranks[stage] if a.kind == "B" and a.microbatch == last]

    def _parts_s(self, action: Action) -> tuple[float, ...] | None:
        """The layers of a last backward pass, where gradients are reduced beside it."""
        is_last = action.microbatch == self.scenario.num_microbatches - 1
        if not (self._has_buckets and is_last and action.kind == "B"):
            return None
        time = self.action_time(action)
        ends = (0.0, *time.layer_ends_s[:-1], time.duration_s)
        return tuple(end - start for start, end in itertools.pairwise(ends))


def _flops(order: IssueOrder, *, recompute: bool) -> int:
    return total_flops(order.ops()) if recompute else total_model_flops(order.ops())


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Seconds that every message costs its receiver."""

    duration_s: float

    def __call__(self, message: Message) -> float:
        return self.duration_s
