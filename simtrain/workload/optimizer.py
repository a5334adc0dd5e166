"""What follows the last backward pass: reducing gradients, their norm, and Adam.

Order and ops: Megatron-LM's `finalize_model_grads` and mixed-precision optimizer of 2022. Bytes
are counted per parameter: fp32 master weight, momentum and variance, 16-bit model weight, and
the gradient in the type it is accumulated in.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.scenario import Scenario
from simtrain.workload.ops import (
    Collective,
    CollectiveKind,
    Elementwise,
    Group,
    Kernel,
    Op,
    Phase,
)
from simtrain.workload.parameters import StageParameters
from simtrain.workload.shape import FP32_BYTES

ADAM_READS = 4
"""Gradient, master weight, momentum, variance (all fp32)."""
ADAM_WRITES = 3
"""Master weight, momentum, variance."""


@dataclass(frozen=True, slots=True)
class StepOps:
    """Ops of one rank after its last backward pass, in the order in which they run."""

    average: tuple[Op, ...]
    data_reduction: tuple[Op, ...]
    sequence_parallel_reduction: tuple[Op, ...]
    embedding_reduction: tuple[Op, ...]
    gradient_norm: tuple[Op, ...]
    update: tuple[Op, ...]


def step_ops(scenario: Scenario, parameters: StageParameters) -> StepOps:
    """The step of a rank with these parameters; groups of one have nothing to reduce."""
    return StepOps(
        average=average(scenario, parameters.total),
        data_reduction=data_reduction(scenario, parameters.total),
        sequence_parallel_reduction=_sequence_parallel_reduction(scenario, parameters),
        embedding_reduction=_embedding_reduction(scenario, parameters),
        gradient_norm=_gradient_norm(scenario, parameters.total),
        update=_update(scenario, parameters.total),
    )


def average(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    """Divide by the number of replicas; Megatron's `allreduce_gradients` does so for one too."""
    num_bytes = num_parameters * scenario.gradient_bytes
    return (_stream("gradient average", num_bytes, num_bytes),)


def data_reduction(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    """Sum over the replicas, where there are several."""
    if scenario.parallelism.data == 1:
        return ()
    num_bytes = num_parameters * scenario.gradient_bytes
    return (_all_reduce("gradient all-reduce", num_bytes, scenario.parallelism.data, Group.DATA),)


def _sequence_parallel_reduction(scenario: Scenario, parameters: StageParameters) -> tuple[Op, ...]:
    if not scenario.parallelism.sequence_parallel:
        return ()
    num_bytes = parameters.sequence_parallel * scenario.gradient_bytes
    tensor = scenario.parallelism.tensor
    return (_all_reduce("layer norm gradient all-reduce", num_bytes, tensor, Group.TENSOR),)


def _embedding_reduction(scenario: Scenario, parameters: StageParameters) -> tuple[Op, ...]:
    tied_over_stages = scenario.model.tied_embeddings and scenario.parallelism.pipeline > 1
    if not (tied_over_stages and parameters.embedding):
        return ()
    num_bytes = parameters.embedding * scenario.gradient_bytes
    return (_all_reduce("embedding gradient all-reduce", num_bytes, 2, Group.EMBEDDING),)


def _gradient_norm(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    """Gradients to fp32 where they are not, unscaled where losses are scaled, and their norm."""
    fp32 = num_parameters * FP32_BYTES
    ops: list[Op] = []
    if scenario.gradient_bytes != FP32_BYTES:
        ops.append(_stream("gradient to fp32", num_parameters * scenario.gradient_bytes, fp32))
    if scenario.precision.compute == "fp16":
        ops.append(_stream("gradient unscale and check", fp32, fp32))
    ops.append(_stream("gradient norm", fp32, 0))
    ranks = scenario.parallelism.tensor * scenario.parallelism.pipeline
    if ranks > 1:
        ops.append(_all_reduce("gradient norm all-reduce", FP32_BYTES, ranks, Group.MODEL))
    return tuple(ops)


def _update(scenario: Scenario, num_parameters: int) -> tuple[Op, ...]:
    fp32 = num_parameters * FP32_BYTES
    model = num_parameters * scenario.compute_bytes
    return (
        _stream("gradient clip", fp32, fp32),
        _stream("Adam", ADAM_READS * fp32, ADAM_WRITES * fp32),
        _stream("master weights to model", fp32, model),
        _stream("gradient zero", 0, num_parameters * scenario.gradient_bytes),
    )


def _stream(name: str, read_bytes: int, write_bytes: int) -> Elementwise:
    return Elementwise(name, read_bytes, write_bytes, Phase.OPTIMIZER, Kernel.STREAM)


def _all_reduce(name: str, num_bytes: int, ranks: int, group: Group) -> Collective:
    return Collective(
        name, CollectiveKind.ALL_REDUCE, num_bytes, ranks, Phase.OPTIMIZER, group=group
    )
