"""Puts the rooms together: a scenario in, the timeline of one iteration and what it means out."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from simtrain.costs.price import Pricer
from simtrain.engine import simulate as run_program
from simtrain.hardware.load import profile_of
from simtrain.hardware.placement import Placement
from simtrain.hardware.profile import HardwareProfile
from simtrain.programs.chunk import ActionTime, simulate_chunk
from simtrain.programs.iteration import Bucket, StageStep, iteration_program
from simtrain.programs.pipeline import PipelineCosts
from simtrain.report.breakdown import stage_breakdowns
from simtrain.report.result import Result
from simtrain.scenario import Scenario, check_cluster, check_scenario
from simtrain.schedules import Action, Message, Schedule
from simtrain.schedules import build as build_schedule
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import IssueOrder
from simtrain.workload.layer import Recompute
from simtrain.workload.ops import (
    Collective,
    CollectiveKind,
    Gemm,
    Op,
    Phase,
)
from simtrain.workload.optimizer import average, data_reduction, step_ops
from simtrain.workload.parameters import StageParameters, layer_parameters, stage_parameters
from simtrain.workload.shape import LayerShape


def simulate(scenario: Scenario, profile: HardwareProfile | None = None) -> Result:
    """Simulate one training iteration of a scenario on its cluster.

    `profile` stands in for the one that the scenario names.

    Raises:
        InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
    """
    check_scenario(scenario)
    profile = profile or profile_of(scenario)
    check_cluster(scenario, profile.cluster.gpus_per_node.value, profile.cluster.num_nodes.value)
    iteration = _Iteration(scenario, profile)
    program, pipeline = iteration_program(
        iteration.schedule, iteration.costs(), iteration.steps(), overlap=scenario.overlap.pipeline
    )
    timeline = run_program(program)
    return Result(
        scenario=scenario,
        profile=profile,
        timeline=timeline,
        stages=stage_breakdowns(
            timeline, iteration.schedule, pipeline.actions, iteration.action_time
        ),
        model_flops=iteration.flops(recompute=False),
        hardware_flops=iteration.flops(recompute=True),
        extrapolated=iteration.pricer.extrapolated(),
    )


def simulate_layer(scenario: Scenario, profile: HardwareProfile) -> tuple[ActionTime, ActionTime]:
    """Forward and backward pass of one layer of a scenario, without embedding and head."""
    pricer = Pricer(profile, Placement.of(scenario, profile.cluster.gpus_per_node.value))
    shape, recompute = LayerShape.of(scenario), Recompute(scenario.recompute)
    hide = scenario.overlap.tensor_parallel
    layer = Chunk(num_layers=1)
    forward = simulate_chunk(layer.forward(shape, recompute, hide=hide), pricer)
    backward = simulate_chunk(layer.backward(shape, recompute, hide=hide), pricer)
    return forward, backward


@dataclass
class _Iteration:
    """A scenario taken apart into chunks, and their passes simulated once each."""

    scenario: Scenario
    profile: HardwareProfile
    shape: LayerShape = field(init=False)
    pricer: Pricer = field(init=False)
    schedule: Schedule = field(init=False)

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
        self.chunk = functools.cache(self._chunk)
        self.passes = functools.cache(self._pass)
        self.times = functools.cache(self._time)

    def _chunk(self, virtual_stage: int) -> Chunk:
        """Layers are contiguous by virtual stage; the ends carry embedding and head."""
        last = self.schedule.num_virtual_stages - 1
        return Chunk(
            self.scenario.layers_per_chunk,
            has_embedding=virtual_stage == 0,
            has_head=virtual_stage == last,
            reads_batch=True,
        )

    def action_time(self, action: Action) -> ActionTime:
        """Where the seconds of an action go; equal chunks are simulated once."""
        return self.times(self.chunk(action.virtual_stage), action.kind)

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

    def steps(self) -> Sequence[StageStep]:
        """What each stage does after its last backward pass."""
        return [self._step(stage) for stage in range(self.schedule.num_stages)]

    def flops(self, *, recompute: bool) -> int:
        """FLOPs of all GPUs in an iteration, with or without what is computed twice."""
        stages = range(self.schedule.num_virtual_stages)
        passes = (self.passes(self.chunk(stage), kind) for stage in stages for kind in "FB")
        per_microbatch = sum(
            op.flops
            for order in passes
            for op in order.ops()
            if isinstance(op, Gemm) and (recompute or op.phase is not Phase.RECOMPUTE)
        )
        ranks = self.scenario.parallelism.tensor * self.scenario.parallelism.data
        return per_microbatch * self.scenario.num_microbatches * ranks

    def _pass(self, chunk: Chunk, kind: str) -> IssueOrder:
        recompute = Recompute(self.scenario.recompute)
        one_way = chunk.forward if kind == "F" else chunk.backward
        return one_way(self.shape, recompute, hide=self.scenario.overlap.tensor_parallel)

    def _time(self, chunk: Chunk, kind: str) -> ActionTime:
        return simulate_chunk(self.passes(chunk, kind), self.pricer)

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
        parameters = self._parameters(stage)
        ops = step_ops(self.scenario, parameters)
        overlapped = self.scenario.overlap.data_parallel and self.scenario.parallelism.data > 1
        *norm, norm_reduction = self._with_reduction(ops.gradient_norm)
        return StageStep(
            average_s=0.0 if overlapped else self._seconds(ops.average),
            data_reduction_s=0.0 if overlapped else self._seconds(ops.data_reduction),
            buckets=self._buckets(stage, parameters) if overlapped else (),
            sequence_parallel_s=self._seconds(ops.sequence_parallel_reduction),
            embedding_s=self._seconds(ops.embedding_reduction) if ops.embedding_reduction else None,
            norm_s=math.fsum(norm),
            norm_reduction_s=norm_reduction,
            update_s=self._seconds(ops.update),
        )

    def _parameters(self, stage: int) -> StageParameters:
        chunks = tuple(
            self.chunk(stage + number * self.schedule.num_stages)
            for number in range(self.schedule.num_chunks)
        )
        return stage_parameters(self.shape, chunks, tied=self.scenario.model.tied_embeddings)

    def _with_reduction(self, ops: tuple[Op, ...]) -> list[float]:
        """Seconds of each op, the collective last (0 where a rank is alone)."""
        local = [self.pricer.cost(op).duration_s for op in ops if not isinstance(op, Collective)]
        return [*local, self._seconds(tuple(op for op in ops if isinstance(op, Collective)))]

    def _seconds(self, ops: tuple[Op, ...]) -> float:
        return math.fsum(self.pricer.cost(op).duration_s for op in ops)

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
        overlapped = self.scenario.overlap.data_parallel and self.scenario.parallelism.data > 1
        if not (overlapped and is_last and action.kind == "B"):
            return None
        time = self.action_time(action)
        ends = (0.0, *time.layer_ends_s[:-1], time.duration_s)
        return tuple(end - start for start, end in itertools.pairwise(ends))


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Seconds that every message costs its receiver."""

    duration_s: float

    def __call__(self, message: Message) -> float:
        return self.duration_s
