"""What follows the last backward pass: reducing gradients, their norm, Adam, new parameters.

Order and ops: Megatron-LM's `finalize_model_grads` and mixed-precision optimizer of 2022. Bytes
are counted per parameter: fp32 master weight, momentum and variance, 16-bit model weight, and
the gradient in the type it is accumulated in.

ZeRO shards this work over the replicas. Stage 1 is Megatron-LM's `DistributedOptimizer`: gradients
are divided by the number of replicas and reduce-scattered, each rank measures, clips and updates
its shard, and the new parameters are all-gathered in the compute type. Stages 2 and 3 have reduced
their gradients in the backward passes (`workload.sharding`); stage 3 gathers parameters there too.

An offloaded optimizer (Ren et al., "ZeRO-Offload", 2021) has its states on the host: the rank's
shard of the gradients goes there, the host clips and runs Adam, and the parameters come back.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from simtrain.mesh import AXES, Group, Mesh
from simtrain.scenario import Scenario
from simtrain.workload.chunk import Parameters
from simtrain.workload.hashing import hashed_once, shared
from simtrain.workload.ops import Op, Phase, collective, elementwise
from simtrain.workload.work import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    HostResource,
    HostWork,
    KernelFamily,
)

ADAM_READS = 4
"""Gradient, master weight, momentum, variance (all fp32)."""
ADAM_WRITES = 3
"""Master weight, momentum, variance."""


@hashed_once
@dataclass(frozen=True)
class StepOptions:
    """All but its parameters that a rank's optimizer step follows from.

    Args:
        data, model, everyone: ranks with the same parameters (`Mesh.data_group`); the ranks that
            together hold all of them; all ranks.
        partial_sums: the group that sums gradients of parameters that its ranks hold whole, if
            sequence parallelism leaves partial sums.
        tied: the two stages that hold the same parameters, if there are two.
        zero_stage, offloads: as the scenario's memory.zero_stage and memory.offload_optimizer.
        unscales: gradients come from scaled losses (fp16).
        reduces_beside_backward: in buckets, beside the last backward pass.
    """

    data: Group
    model: Group
    everyone: Group
    partial_sums: Group | None
    tied: Group | None
    zero_stage: int
    offloads: bool
    element_bytes: int
    gradient_bytes: int
    unscales: bool
    reduces_beside_backward: bool

    @classmethod
    def of(cls, scenario: Scenario, mesh: Mesh) -> StepOptions:
        """The options of a scenario."""
        memory, split = scenario.memory, scenario.parallelism
        reduces = mesh.data_group.num_ranks > 1 and memory.zero_stage < 2
        return shared(
            cls(
                *_groups(
                    mesh,
                    partial_sums=split.sequence_parallel,
                    tied=scenario.model.tied_embeddings and split.pipeline > 1,
                ),
                zero_stage=memory.zero_stage,
                offloads=memory.offload_optimizer,
                element_bytes=scenario.compute_bytes,
                gradient_bytes=scenario.gradient_bytes,
                unscales=scenario.precision.compute == "fp16",
                reduces_beside_backward=reduces and scenario.overlap.data_parallel,
            )
        )

    def held(self, num_parameters: int, *, from_stage: int) -> int:
        """Of states that ZeRO shards from a stage on, those of the rank with the largest shard."""
        if self.zero_stage < from_stage:
            return num_parameters
        return -(-num_parameters // self.data.num_ranks)


@functools.lru_cache(maxsize=4096)
def _groups(
    mesh: Mesh, *, partial_sums: bool, tied: bool
) -> tuple[Group, Group, Group, Group | None, Group | None]:
    """The groups of `StepOptions`, in the order of its fields."""
    return (
        mesh.data_group,
        mesh.group("tp", "pp"),
        mesh.group(*AXES),
        mesh.group("tp") if partial_sums else None,
        mesh.ends("pp") if tied else None,
    )


STEP_FIELDS = (
    "average",
    "data_reduction",
    "sequence_parallel",
    "embedding",
    "to_host",
    "norm",
    "norm_reduction",
    "update",
    "parameter_gather",
)
"""What a step consists of, in the order in which it runs."""

StepOps = dict[str, tuple[Op, ...]]
"""Ops of one rank after its last backward pass, by field; fields without ops are left out."""


@functools.lru_cache(maxsize=4096)
def step_ops(options: StepOptions, parameters: Parameters) -> StepOps:
    """The step of a rank with these parameters; groups of one have nothing to reduce."""
    beside = options.zero_stage >= 2 or options.reduces_beside_backward
    number = parameters.total
    fields = (
        () if beside else average(options, number),
        () if beside else data_reduction(options, number),
        _reduction_of_partial_sums(options, parameters),
        _embedding_reduction(options, parameters),
        _to_host(options, number),
        _gradient_norm(options, number),
        _norm_reduction(options),
        _update(options, number),
        _parameter_gather(options, number),
    )
    return {name: ops for name, ops in zip(STEP_FIELDS, fields, strict=True) if ops}


def average(options: StepOptions, num_parameters: int) -> tuple[Op, ...]:
    """Divide by the number of replicas; Megatron's `allreduce_gradients` does so for one too."""
    num_bytes = num_parameters * options.gradient_bytes
    return (_stream("gradient average", num_bytes, num_bytes),)


def data_reduction(options: StepOptions, num_parameters: int) -> tuple[Op, ...]:
    """Sum over the replicas, where there are several: whole on each, or each its shard (ZeRO 1)."""
    if options.data.num_ranks == 1:
        return ()
    num_bytes = num_parameters * options.gradient_bytes
    if options.zero_stage == 0:
        return (_all_reduce("gradient all-reduce", num_bytes, options.data),)
    kind = CollectiveKind.REDUCE_SCATTER
    return (_collective("gradient reduce-scatter", kind, num_bytes, options.data),)


def _reduction_of_partial_sums(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    if options.partial_sums is None:
        return ()
    num_bytes = options.held(parameters.partial_sums, from_stage=2) * options.gradient_bytes
    return (_all_reduce("layer norm gradient all-reduce", num_bytes, options.partial_sums),)


def _embedding_reduction(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    if options.tied is None or not parameters.tied:
        return ()
    num_bytes = parameters.tied * options.gradient_bytes
    return (_all_reduce("embedding gradient all-reduce", num_bytes, options.tied),)


def _to_host(options: StepOptions, num_parameters: int) -> tuple[Op, ...]:
    num_bytes = options.held(num_parameters, from_stage=1) * options.gradient_bytes
    op = _host("gradients to host", num_bytes, HostResource.LINK)
    return (op,) if options.offloads else ()


def _gradient_norm(options: StepOptions, num_parameters: int) -> tuple[Op, ...]:
    """Gradients to fp32 where they are not, unscaled where losses are scaled, and their norm.

    A host that runs Adam converts and unscales what it gets.
    """
    held = options.held(num_parameters, from_stage=1)
    fp32, given = held * FP32_BYTES, held * options.gradient_bytes
    ops: list[Op] = []
    if options.gradient_bytes != FP32_BYTES and not options.offloads:
        ops.append(_stream("gradient to fp32", given, fp32))
    if options.unscales and not options.offloads:
        ops.append(_stream("gradient unscale and check", fp32, fp32))
    ops.append(_stream("gradient norm", given if options.offloads else fp32, 0))
    return tuple(ops)


def _norm_reduction(options: StepOptions) -> tuple[Op, ...]:
    group = options.everyone if options.zero_stage else options.model
    op = _all_reduce("gradient norm all-reduce", FP32_BYTES, group)
    return (op,) if group.num_ranks > 1 else ()


def _update(options: StepOptions, num_parameters: int) -> tuple[Op, ...]:
    held = options.held(num_parameters, from_stage=1)
    fp32, model = held * FP32_BYTES, held * options.element_bytes
    gradients = options.held(num_parameters, from_stage=2) * options.gradient_bytes
    zero = _stream("gradient zero", 0, gradients)
    if options.offloads:
        moved = (ADAM_READS + ADAM_WRITES) * fp32
        return (
            _host("Adam on the host", moved, HostResource.ADAM),
            _host("parameters from host", model, HostResource.LINK),
            zero,
        )
    return (
        _stream("gradient clip", fp32, fp32),
        _stream("Adam", ADAM_READS * fp32, ADAM_WRITES * fp32),
        _stream("master weights to model", fp32, model),
        zero,
    )


def _parameter_gather(options: StepOptions, num_parameters: int) -> tuple[Op, ...]:
    """Every rank gets the parameters that the others updated, unless it holds only its shard."""
    if options.zero_stage not in (1, 2):
        return ()
    num_bytes, kind = num_parameters * options.element_bytes, CollectiveKind.ALL_GATHER
    return (_collective("parameter all-gather", kind, num_bytes, options.data),)


def _stream(name: str, read_bytes: int, write_bytes: int) -> Op:
    stream = KernelFamily.STREAM
    return elementwise(name, read_bytes, write_bytes, Phase.OPTIMIZER, family=stream)


def _host(name: str, num_bytes: int, resource: HostResource) -> Op:
    return Op(name, HostWork(num_bytes, resource), Phase.OPTIMIZER)


def _all_reduce(name: str, num_bytes: int, group: Group) -> Op:
    return _collective(name, CollectiveKind.ALL_REDUCE, num_bytes, group)


def _collective(name: str, kind: CollectiveKind, num_bytes: int, group: Group) -> Op:
    work = Collective(kind, num_bytes, group)
    return collective(name, work, Phase.OPTIMIZER, holds_activation=False)
