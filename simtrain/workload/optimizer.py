"""What follows the last backward pass: reducing gradients, their norm, Adam, new parameters.

Order and ops: Megatron-LM's `finalize_model_grads` and mixed-precision optimizer of 2022. Bytes
are counted per parameter: fp32 master weight, momentum and variance, 16-bit model weight, and
the gradient in the type it is accumulated in.

ZeRO divides this work over the replicas. Stage 1 is Megatron-LM's `DistributedOptimizer`: gradients
are divided by the number of replicas and reduce-scattered, each rank measures, clips and updates
its part, and the new parameters are all-gathered in the compute type. Stages 2 and 3 have reduced
their gradients in the backward passes (`workload.zero`); stage 3 gathers parameters there too.

An offloaded optimizer (Ren et al., "ZeRO-Offload", 2021) has its states on the host: the rank's
part of the gradients goes there, the host clips and runs Adam, and the parameters come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.scenario import Scenario
from simtrain.workload.host import HostOp, HostResource
from simtrain.workload.ops import (
    Collective,
    CollectiveKind,
    Elementwise,
    Group,
    Kernel,
    Op,
    Phase,
)
from simtrain.workload.parameters import StageParameters, held_part
from simtrain.workload.shape import FP32_BYTES

ADAM_READS = 4
"""Gradient, master weight, momentum, variance (all fp32)."""
ADAM_WRITES = 3
"""Master weight, momentum, variance."""


@dataclass(frozen=True, slots=True)
class StepOps:
    """Ops of one rank after its last backward pass, in the order in which they run.

    `to_host` are empty, and `update` runs on the device, unless the optimizer is offloaded.
    """

    average: tuple[Op, ...]
    data_reduction: tuple[Op, ...]
    sequence_parallel_reduction: tuple[Op, ...]
    embedding_reduction: tuple[Op, ...]
    to_host: tuple[HostOp, ...]
    gradient_norm: tuple[Op, ...]
    update: tuple[Op | HostOp, ...]
    parameter_gather: tuple[Op, ...]


def step_ops(scenario: Scenario, parameters: StageParameters) -> StepOps:
    """The step of a rank with these parameters; groups of one have nothing to reduce."""
    divides_gradients = scenario.memory.zero_stage >= 2
    return StepOps(
        average=() if divides_gradients else average(scenario, parameters.total),
        data_reduction=() if divides_gradients else data_reduction(scenario, parameters.total),
        sequence_parallel_reduction=_sequence_parallel_reduction(scenario, parameters),
        embedding_reduction=_embedding_reduction(scenario, parameters),
        to_host=_to_host(scenario, parameters.total),
        gradient_norm=_gradient_norm(scenario, parameters.total),
        update=_update(scenario, parameters.total),
        parameter_gather=_parameter_gather(scenario, parameters.total),
    )


def average(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    """Divide by the number of replicas; Megatron's `allreduce_gradients` does so for one too."""
    num_bytes = num_parameters * scenario.gradient_bytes
    return (_stream("gradient average", num_bytes, num_bytes),)


def data_reduction(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    """Sum over the replicas, where there are several: whole on each, or each its part (ZeRO 1)."""
    if scenario.parallelism.data == 1:
        return ()
    num_bytes, data = num_parameters * scenario.gradient_bytes, scenario.parallelism.data
    if scenario.memory.zero_stage == 0:
        return (_all_reduce("gradient all-reduce", num_bytes, data, Group.DATA),)
    kind = CollectiveKind.REDUCE_SCATTER
    return (_collective("gradient reduce-scatter", kind, num_bytes, data, Group.DATA),)


def _sequence_parallel_reduction(scenario: Scenario, parameters: StageParameters) -> tuple[Op, ...]:
    if not scenario.parallelism.sequence_parallel:
        return ()
    held = held_part(scenario, parameters.sequence_parallel, from_stage=2)
    num_bytes = held * scenario.gradient_bytes
    tensor = scenario.parallelism.tensor
    return (_all_reduce("layer norm gradient all-reduce", num_bytes, tensor, Group.TENSOR),)


def _embedding_reduction(scenario: Scenario, parameters: StageParameters) -> tuple[Op, ...]:
    tied_over_stages = scenario.model.tied_embeddings and scenario.parallelism.pipeline > 1
    if not (tied_over_stages and parameters.embedding):
        return ()
    num_bytes = parameters.embedding * scenario.gradient_bytes
    return (_all_reduce("embedding gradient all-reduce", num_bytes, 2, Group.EMBEDDING),)


def _to_host(scenario: Scenario, num_parameters: int) -> tuple[HostOp, ...]:
    if not scenario.memory.offload_optimizer:
        return ()
    num_bytes = held_part(scenario, num_parameters, from_stage=1) * scenario.gradient_bytes
    return (HostOp("gradients to host", num_bytes, HostResource.LINK),)


def _gradient_norm(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    """Gradients to fp32 where they are not, unscaled where losses are scaled, and their norm.

    A host that runs Adam converts and unscales what it gets.
    """
    held = held_part(scenario, num_parameters, from_stage=1)
    fp32, given = held * FP32_BYTES, held * scenario.gradient_bytes
    offloads = scenario.memory.offload_optimizer
    ops: list[Op] = []
    if scenario.gradient_bytes != FP32_BYTES and not offloads:
        ops.append(_stream("gradient to fp32", given, fp32))
    if scenario.precision.compute == "fp16" and not offloads:
        ops.append(_stream("gradient unscale and check", fp32, fp32))
    ops.append(_stream("gradient norm", given if offloads else fp32, 0))
    ranks = scenario.parallelism.tensor * scenario.parallelism.pipeline
    group = Group.MODEL
    if scenario.memory.zero_stage:
        ranks, group = scenario.num_gpus, Group.ALL
    if ranks > 1:
        ops.append(_all_reduce("gradient norm all-reduce", FP32_BYTES, ranks, group))
    return tuple(ops)


def _update(scenario: Scenario, num_parameters: int) -> tuple[Op | HostOp, ...]:
    held = held_part(scenario, num_parameters, from_stage=1)
    fp32, model = held * FP32_BYTES, held * scenario.compute_bytes
    gradients = held_part(scenario, num_parameters, from_stage=2) * scenario.gradient_bytes
    zero = _stream("gradient zero", 0, gradients)
    moved = (ADAM_READS + ADAM_WRITES) * fp32
    if scenario.memory.offload_optimizer:
        return (
            HostOp("Adam on the host", moved, HostResource.ADAM),
            HostOp("parameters from host", model, HostResource.LINK),
            zero,
        )
    return (
        _stream("gradient clip", fp32, fp32),
        _stream("Adam", ADAM_READS * fp32, ADAM_WRITES * fp32),
        _stream("master weights to model", fp32, model),
        zero,
    )


def _parameter_gather(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    """Every rank gets the parameters that the others updated, unless it holds only its part."""
    if scenario.memory.zero_stage not in (1, 2):
        return ()
    num_bytes, data = num_parameters * scenario.compute_bytes, scenario.parallelism.data
    kind = CollectiveKind.ALL_GATHER
    return (_collective("parameter all-gather", kind, num_bytes, data, Group.DATA),)


def _stream(name: str, read_bytes: int, write_bytes: int) -> Elementwise:
    return Elementwise(name, read_bytes, write_bytes, Phase.OPTIMIZER, Kernel.STREAM)


def _all_reduce(name: str, num_bytes: int, ranks: int, group: Group) -> Collective:
    return _collective(name, CollectiveKind.ALL_REDUCE, num_bytes, ranks, group)


def _collective(
    name: str, kind: CollectiveKind, num_bytes: int, ranks: int, group: Group
) -> Collective:
    return Collective(name, kind, num_bytes, ranks, Phase.OPTIMIZER, group=group)
