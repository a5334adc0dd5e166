"""The optimizer step: reduce gradients, compute their norm, run Adam, gather new parameters.

Order and ops: Megatron-LM's `finalize_model_grads` and mixed-precision optimizer of 2022. Each
parameter has an fp32 master weight, momentum and variance, a 16-bit model weight, and a gradient in
the type of the gradient buffer. Training in fp32 has no master weights.

Narrow states are those of Megatron-LM's precision-aware optimizer (Transformer Engine's FusedAdam,
pytorch/optimizers/fused_adam.py): one kernel reads and writes the states in their stored types,
reads the reduced gradients in theirs, and writes the model's weights.

Weights of fp8 products are cast once per iteration, both copies at once, after all weights are
updated. Transformer Engine casts them in the first microbatch's forward pass
(`is_first_microbatch`), whether or not the step has changed them: frozen weights in bf16 are cast
in every iteration too. Weights that are kept in fp8 are cast from the master weights by each rank
for its shard, gathered in fp8, and transposed. Frozen ones have no master weights, so they stay as
they are (pytorch/module/base.py, `get_weight_workspace`, returns a quantized weight itself).

ZeRO shards this work over the replicas. Stage 1 is Megatron-LM's `DistributedOptimizer`: gradients
are divided by the number of replicas and reduce-scattered; each rank computes the norm of its
shard, clips it and updates it; the new parameters are all-gathered in the compute type. Stages 2
and 3 have reduced their gradients in the backward passes (`workload.sharding`). Stage 3 gathers
parameters in the passes too. With PyTorch's fully_shard, a rank's shard of the parameters is its
fp32 master weights.

Parameters of experts have other replicas. Collectives over replicas run once for experts and once
for all other parameters, each over its group (Megatron-LM's expert-data-parallel group).

An offloaded optimizer (Ren et al., "ZeRO-Offload", 2021) has its states on the host. The rank's
shard of the gradients is copied to the host, the host clips and runs Adam, and the parameters are
copied back.
"""

from __future__ import annotations

import functools
import itertools

from simtrain.base.mesh import Axis, Group, Mesh
from simtrain.base.values import dataclass
from simtrain.scenario import Scenario
from simtrain.workload.chunk import Chunk, Parameters, layer_parameters
from simtrain.workload.fp8 import RECIPES
from simtrain.workload.hashing import hashed_once, shared
from simtrain.workload.ops import Op, Phase, collective, elementwise
from simtrain.workload.recorded_step import RecordedStep
from simtrain.workload.segments import BlockRun, block_parameters
from simtrain.workload.sharding import expert_groups, replicate_group, shard_ranks
from simtrain.workload.tape import Microbatch, Parameter
from simtrain.workload.work import (
    FP32_BYTES,
    CollectiveKind,
    HostResource,
    HostWork,
    KernelFamily,
    SliceCopies,
)

_STAGES: tuple[Axis, ...] = ("pp",)


@hashed_once
@dataclass(frozen=True)
class StepOptions:
    """Everything that determines a rank's optimizer step, except its parameters.

    Args:
        data: ranks with the same parameters (`Mesh.data_group`), or ranks that shard states
            (`Mesh.shard_group`).
        model: ranks that together hold all parameters.
        everyone: ranks that together hold all states.
        partial_sums: the group that sums partial gradients of parameters that its ranks hold
            whole, with sequence parallelism or replicated adapters; else None.
        tied: the stages that share the table of the embedding; None if none do.
        zero_stage, offloads: as the scenario's memory.zero_stage and memory.offload_optimizer.
        unscales: gradients come from scaled losses (fp16).
        fully_shards: shards of parameters are in fp32 and are the master weights; gradients are
            added to fp32 shards.
        element_bytes, gradient_bytes: of parameters and of the gradient buffer.
        fused_adam: Adam is one kernel; PyTorch's foreach Adam has one kernel per step.
        reduces_during_backward: gradient buckets overlap the last backward pass.
        gathers_during_forward: parameter buckets overlap the first forward pass.
        fp8_recipe: name of the recipe that casts weights to fp8; "" without fp8.
        keeps_fp8: weights of fp8 products are stored and gathered in fp8; with fully_shard they are
            only gathered in fp8. Frozen ones are stored only.
        fp8_copies: fp8 copies of each weight that are made once per iteration and stay for all
            microbatches, besides weights that are kept in fp8.
        state_bytes: bytes per parameter of master weight, momentum and variance.
        replicate_group: ranks that hold equal shards; None if `data` contains all replicas.
        keeps_gradients: gradients of all microbatches are added unsharded, even with ZeRO.
        users: ranks that use their hosts at the same time; threads of each that run Adam there.
        lists_tensors: small tensors, which stay unsharded, are gathered at the end, in a list.
        adapters: ranks that share the adapters of experts; None without.
        expert_data, expert_replicate_group, expert_model: as `data`, `replicate_group` and
            `model`, for the parameters of experts; None for a dense model.
        recorded: the recorded program whose optimizer this is; None for other models.
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
    reduces_during_backward: bool
    gathers_during_forward: bool
    state_bytes: tuple[int, int, int]
    fp8_recipe: str
    keeps_fp8: bool
    fp8_copies: int
    replicate_group: Group | None
    keeps_gradients: bool
    adapters: Group | None
    expert_data: Group | None
    expert_replicate_group: Group | None
    expert_model: Group | None
    fused_adam: bool
    fully_shards: bool
    users: int | None
    threads: int
    lists_tensors: bool
    recorded: RecordedStep | None

    @classmethod
    def of(
        cls, scenario: Scenario, mesh: Mesh, recorded: RecordedStep | None = None
    ) -> StepOptions:
        memory, split, precision = scenario.memory, scenario.parallelism, scenario.precision
        of_experts = scenario.expert_mesh(mesh)
        expert_data, expert_replicate_group = expert_groups(scenario, mesh)
        replicas = max(
            each_mesh.data_group.num_ranks for each_mesh in (mesh, of_experts) if each_mesh
        )
        reduces = replicas > 1 and memory.zero_stage < 2 and recorded is None
        buckets = reduces and scenario.overlaps_data_parallel
        return shared(
            cls(
                *_groups(
                    mesh,
                    partial_sums=split.sequence_parallel or scenario.replicates_adapters,
                    tied=scenario.embedding_stages,
                    num_ranks=shard_ranks(scenario, mesh),
                ),
                zero_stage=memory.zero_stage,
                offloads=memory.offload_optimizer,
                element_bytes=scenario.precision.compute_bytes,
                gradient_bytes=scenario.gradient_bytes,
                unscales=precision.compute == "fp16",
                reduces_during_backward=buckets,
                gathers_during_forward=buckets and scenario.overlaps_parameter_gather,
                fused_adam=scenario.facts.fused_optimizer,
                fully_shards=scenario.fully_shards,
                state_bytes=(0, 4, 4) if scenario.fully_shards else precision.state_bytes,
                fp8_recipe=scenario.fp8_recipe,
                keeps_fp8=scenario.keeps_fp8_parameters,
                fp8_copies=_fp8_copies(scenario),
                replicate_group=replicate_group(scenario, mesh),
                keeps_gradients=memory.zero_stage > 1 and not scenario.reduces_every_microbatch,
                adapters=of_experts.group("ep") if scenario.model.lora and of_experts else None,
                expert_data=expert_data,
                expert_replicate_group=expert_replicate_group,
                expert_model=of_experts.group("tp", "ep", *_STAGES) if of_experts else None,
                users=mesh.num_ranks if memory.offload_optimizer else None,
                threads=scenario.facts.optimizer_threads if memory.offload_optimizer else 0,
                lists_tensors=scenario.lists_tensors,
                recorded=recorded,
            )
        )

    def held(self, num_parameters: int, num_expert: int = 0, *, from_stage: int) -> int:
        """Return the number of parameters whose states, sharded from a stage on, a rank holds."""
        if self.zero_stage < from_stage:
            return num_parameters
        return sum(
            -(-number // group.num_ranks)
            for number, group in self.over_replicas(num_parameters, num_expert)
        )

    @property
    def shard_gradient_bytes(self) -> int:
        return FP32_BYTES if self.fully_shards else self.gradient_bytes

    @property
    def narrow_states(self) -> bool:
        return self.state_bytes not in ((0, 4, 4), (4, 4, 4))

    def weights_bytes(self, num_parameters: int, num_fp8: int) -> int:
        kept = num_fp8 if self.keeps_fp8 and not self.fully_shards else 0
        wide = (num_parameters - kept) * (FP32_BYTES if self.fully_shards else self.element_bytes)
        return wide + RECIPES[self.fp8_recipe].weight_bytes(kept) if kept else wide

    def gathered_bytes(self, num_parameters: int, num_fp8: int) -> int:
        """Bytes of updated weights that ranks gather; `num_fp8` are weights of fp8 products.

        Without square blocks, ranks gather bf16 and cast both copies afterwards. Source:
        Megatron-LM's distributed/param_and_grad_buffer.py (reuse_grad_buf_for_mxfp8_param_ag).
        """
        is_narrow = not self.fp8_recipe or RECIPES[self.fp8_recipe].transposes_weights
        return self.weights_bytes(num_parameters, num_fp8 if is_narrow else 0)

    def fp8_copies_bytes(self, num_fp8: int, copies: int) -> int:
        return copies * RECIPES[self.fp8_recipe].weight_bytes(num_fp8) if num_fp8 * copies else 0

    def over_replicas(self, num_parameters: int, num_expert: int) -> list[tuple[int, Group]]:
        """Return pairs of a number of parameters and the group that holds the same parameters."""
        if self.expert_data is None or not num_expert:
            return [(num_parameters, self.data)]
        return [(num_parameters - num_expert, self.data), (num_expert, self.expert_data)]


def _fp8_copies(scenario: Scenario) -> int:
    used = {"cached": 2, "rows": 1}.get(scenario.fp8_weights, 0)
    return max(0, used - scenario.keeps_fp8_parameters)


@functools.lru_cache(maxsize=4096)
def _groups(
    mesh: Mesh, *, partial_sums: bool, tied: tuple[int, ...], num_ranks: int
) -> tuple[Group, Group, Group, Group | None, Group | None]:
    return (
        mesh.shard_group(num_ranks),
        mesh.group("tp", *_STAGES),
        mesh.instance_group(num_ranks),
        mesh.group("tp") if partial_sums else None,
        mesh.group_at("pp", tied) if len(tied) > 1 else None,
    )


ADAM_READS = 4
"""Gradient, master weight, momentum, variance (all fp32)."""
ADAM_WRITES = 3
"""Master weight, momentum, variance."""


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
    "weight_cast",
)
"""Fields of an optimizer step, in the order in which they run."""

StepOps = dict[str, tuple[Op, ...]]
"""Ops of one rank after its last backward pass, by field; fields without ops are missing."""


@functools.lru_cache(maxsize=4096)
def step_ops(options: StepOptions, parameters: Parameters) -> StepOps:
    """Return the optimizer step of a rank.

    Groups of one rank and stages without trained parameters reduce nothing. A recorded program
    updates its parameters with the ops that it has recorded.
    """
    if options.recorded:
        ops = options.recorded.update
        return {"update": ops} if ops else {}
    num_cast = (parameters.trained if options.keeps_fp8 else parameters).in_fp8
    parameters = parameters.trained
    numbers = number, _ = parameters.total, parameters.experts
    reduced_in_passes = options.zero_stage >= 2 or options.reduces_during_backward or not number
    fields = (
        () if reduced_in_passes else average(options, number),
        () if reduced_in_passes else data_reduction(options, *numbers),
        _reduction_of_partial_sums(options, parameters),
        _embedding_reduction(options, parameters),
        _to_host(options, parameters),
        _gradient_norm(options, parameters),
        _norm_reduction(options, parameters),
        _update(options, parameters),
        ()
        if options.gathers_during_forward or not number
        else parameter_gather(options, *numbers, num_fp8=parameters.in_fp8),
        _weight_cast(options, num_cast),
    )
    if options.lists_tensors and options.data.num_ranks > 1:
        fields = *fields[:-2], _gather_small(options, parameters), fields[-1]
    return {name: ops for name, ops in zip(STEP_FIELDS, fields, strict=True) if ops}


def average(options: StepOptions, num_parameters: int) -> tuple[Op, ...]:
    """Divide gradients by the number of replicas, even if 1 (`allreduce_gradients`)."""
    num_bytes = num_parameters * options.gradient_bytes
    return (_stream("gradient average", num_bytes, num_bytes),)


def data_reduction(
    options: StepOptions, num_parameters: int, num_expert: int = 0
) -> tuple[Op, ...]:
    """Reduce gradients over the replicas: all-reduce, or reduce-scatter with ZeRO 1.

    If only a part of the replicas shards the states, equal shards are then all-reduced.
    `num_expert` of the parameters belong to experts.
    """
    kind, name = CollectiveKind.ALL_REDUCE, "gradient all-reduce"
    if options.zero_stage:
        kind, name = CollectiveKind.REDUCE_SCATTER, "gradient reduce-scatter"
    ops = [
        _collective(name, kind, number * options.gradient_bytes, group)
        for number, group in options.over_replicas(num_parameters, num_expert)
        if group.num_ranks > 1
    ]
    ops += [
        _all_reduce("gradient shard all-reduce", shard * options.gradient_bytes, replicate_group)
        for shard, replicate_group in (
            (options.held(num_parameters - num_expert, from_stage=1), options.replicate_group),
            (options.held(num_expert, num_expert, from_stage=1), options.expert_replicate_group),
        )
        if replicate_group and shard
    ]
    return tuple(ops)


def _reduction_of_partial_sums(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    number, experts = parameters.partial_sums, parameters.experts
    sizes = options.held(number, from_stage=2), options.held(experts, experts, from_stage=2)
    sums = (
        ("partial gradient all-reduce", sizes[0], options.partial_sums),
        ("expert adapter gradient all-reduce", sizes[1], options.adapters),
    )
    return tuple(
        _all_reduce(name, number * options.gradient_bytes, group)
        for name, number, group in sums
        if number and group and group.num_ranks > 1
    )


def _embedding_reduction(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    if options.tied is None or not parameters.tied:
        return ()
    num_bytes = parameters.tied * options.gradient_bytes
    return (_all_reduce("embedding gradient all-reduce", num_bytes, options.tied),)


def _to_host(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    num_bytes = _held(options, parameters, from_stage=1) * options.gradient_bytes
    work = HostWork(num_bytes, HostResource.LINK, options.users)
    op = Op("gradients to host", work, Phase.OPTIMIZER)
    return (op,) if options.offloads else ()


def _gradient_norm(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    """Return ops that convert gradients to fp32, unscale scaled ones, and compute their norm.

    With offload, the host converts and unscales them.
    """
    num_held = _held(options, parameters, from_stage=1)
    fp32, gradient_bytes = num_held * FP32_BYTES, num_held * options.shard_gradient_bytes
    ops: list[Op] = []
    reads_given = options.offloads or options.narrow_states
    if options.shard_gradient_bytes != FP32_BYTES and not reads_given:
        ops.append(_stream("gradient to fp32", gradient_bytes, fp32))
    if options.unscales and not options.offloads:
        ops.append(_stream("gradient unscale and check", fp32, fp32))
    ops.append(_stream("gradient norm", gradient_bytes if reads_given else fp32, 0))
    return tuple(ops)


def _norm_reduction(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    """All-reduce the norm over all ranks that hold parts of the gradients; experts have another."""
    groups = [options.model]
    if parameters.experts and options.expert_model:
        groups.append(options.expert_model)
    if options.zero_stage:
        groups = [options.everyone] * len(groups)
    name = "gradient norm all-reduce"
    return tuple(_all_reduce(name, FP32_BYTES, group) for group in groups if group.num_ranks > 1)


def _update(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    num_held = _held(options, parameters, from_stage=1)
    fp32, model = num_held * FP32_BYTES, num_held * options.element_bytes
    gradients = _held(options, parameters, from_stage=2) * options.shard_gradient_bytes
    zero = _stream("gradient zero", 0, gradients)
    if options.offloads:
        moved, users = (ADAM_READS + ADAM_WRITES) * fp32, options.users
        on_host = HostWork(moved, HostResource.ADAM, users, options.threads)
        back = HostWork(model, HostResource.LINK, options.users)
        return (
            Op("Adam on the host", on_host, Phase.OPTIMIZER),
            Op("parameters from host", back, Phase.OPTIMIZER),
            zero,
        )
    casts = _shard_casts(options, parameters)
    if options.narrow_states:
        gradient_bytes = num_held * options.gradient_bytes
        states = num_held * sum(options.state_bytes)
        rest = model if options.state_bytes[0] < FP32_BYTES else 0
        adam = _stream("Adam", gradient_bytes + states + rest, states + model)
        return (_stream("gradient clip", gradient_bytes, gradient_bytes), adam, *casts, zero)
    update = (_stream("gradient clip", fp32, fp32), *_adam(options, fp32))
    if options.fully_shards:  # zero_grad frees gradients (set_to_none) and runs no kernel
        return (*update, *_shard_scales(options, parameters))
    if options.element_bytes == FP32_BYTES:
        return (*update, zero)
    return (*update, _stream("master weights to model", fp32, model), *casts, zero)


def _shard_casts(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    """Cast a rank's shard of the weights that are kept in fp8, after finding absolute maxima.

    Source: Transformer Engine, pytorch/tensor/utils.py (`cast_master_weights_to_fp8`).
    """
    if not options.keeps_fp8 or not parameters.in_fp8:
        return ()
    recipe, number = RECIPES[options.fp8_recipe], parameters.in_fp8
    if not recipe.transposes_weights:
        return ()
    num_held = options.held(number, parameters.experts, from_stage=1)
    cast = _stream("weights to fp8", 2 * num_held, recipe.weight_bytes(num_held))
    if recipe.dtype == "fp8" and not recipe.finds_largest:
        return (cast,)
    return (_stream("weights largest", num_held * FP32_BYTES, 0), cast)


def _shard_scales(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    """Compute the scales of all weights that fully_shard gathers in fp8.

    Source: torchao/float8/fsdp_utils.py (`precompute_float8_dynamic_scale_for_fsdp`). Its
    all-reduce of one number per weight takes the time of an all-reduce of one number.
    """
    if not options.keeps_fp8:
        return ()
    num_held = options.held(parameters.in_fp8, from_stage=1)
    largest = _stream("weights largest", num_held * FP32_BYTES, 0)
    return (largest, _all_reduce("weights largest all-reduce", FP32_BYTES, options.data))


def _weight_cast(options: StepOptions, num_fp8: int) -> tuple[Op, ...]:
    """Make the cached copies of weights, or the transposes of weights that are kept in fp8."""
    if not num_fp8 or not options.fp8_copies:
        return ()
    recipe, bf16 = RECIPES[options.fp8_recipe], num_fp8 * options.element_bytes
    if options.keeps_fp8 and recipe.transposes_weights:
        return (_stream("weights transpose", num_fp8, num_fp8),)
    num_copies = options.fp8_copies + options.keeps_fp8
    cast = _stream(f"weights to {recipe.format}", bf16, num_copies * recipe.weight_bytes(num_fp8))
    return (_stream("weights largest", bf16, 0), cast) if recipe.finds_largest else (cast,)


_FOREACH_ADAM = (
    ("decay", 1, 1),
    ("momentum", 2, 1),
    ("variance decay", 1, 1),
    ("variance", 2, 1),
    ("square root", 1, 1),
    ("bias correction", 1, 1),
    ("epsilon", 1, 1),
    ("step", 3, 1),
)
"""Kernels of torch.optim's `_multi_tensor_adamw`: name, arrays read, arrays written.

Arrays are gradient, master weight, momentum, variance and, from the square root onwards, a
temporary array.
"""


def _adam(options: StepOptions, fp32: int) -> tuple[Op, ...]:
    if options.fused_adam:
        return (_stream("Adam", ADAM_READS * fp32, ADAM_WRITES * fp32),)
    return tuple(
        _stream(f"Adam {step}", reads * fp32, writes * fp32)
        for step, reads, writes in _FOREACH_ADAM
    )


def parameter_gather(
    options: StepOptions, num_parameters: int, num_expert: int = 0, num_fp8: int = 0
) -> tuple[Op, ...]:
    """All-gather the updated parameters (ZeRO 1 and 2).

    `num_expert` of the parameters belong to experts. `num_fp8` are weights of fp8 products, which
    include all parameters of experts.
    """
    if options.zero_stage not in (1, 2):
        return ()
    name, kind = "parameter all-gather", CollectiveKind.ALL_GATHER
    of_experts = min(num_expert, num_fp8)
    return tuple(
        _collective(name, kind, options.gathered_bytes(number, fp8), group)
        for (number, group), fp8 in zip(
            options.over_replicas(num_parameters, num_expert),
            (num_fp8 - of_experts, of_experts),
            strict=False,
        )
        if group.num_ranks > 1
    )


def _gather_small(options: StepOptions, parameters: Parameters) -> tuple[Op, ...]:
    """Gather tensors that stay unsharded, which takes the host's copies (`_allgather_params`)."""
    num_slices = options.data.num_ranks * (1 + parameters.small_tensors)
    return (Op("parameter copy out", SliceCopies(0, 0, num_slices=num_slices), Phase.OPTIMIZER),)


def _held(options: StepOptions, parameters: Parameters, *, from_stage: int) -> int:
    return options.held(parameters.total, parameters.experts, from_stage=from_stage)


def _stream(name: str, read_bytes: int, write_bytes: int) -> Op:
    stream = KernelFamily.STREAM
    return elementwise(name, read_bytes, write_bytes, Phase.OPTIMIZER, family=stream)


def _all_reduce(name: str, num_bytes: int, group: Group) -> Op:
    return _collective(name, CollectiveKind.ALL_REDUCE, num_bytes, group)


def _collective(name: str, kind: CollectiveKind, num_bytes: int, group: Group) -> Op:
    return collective(name, kind, num_bytes, group, Phase.OPTIMIZER, holds_bytes=0)


# Gradient buckets: layers whose gradients are reduced, and parameters gathered, together.
#
# A bucket contains the trained parameters of consecutive layers. The last layers of the chunk come
# first, because their gradients are complete first. A bucket ends with the layer that fills it.
# Megatron-LM's `_ParamAndGradBuffer` ends it inside that layer, with the parameter that fills it.

MEGATRON_BUCKET, MEGATRON_BUCKET_OF_A_REPLICA = 40_000_000, 1_000_000
"""Parameters of Megatron-LM's bucket: the first number, or the second times the number of replicas
if that is larger (core/distributed/distributed_data_parallel.py)."""


@dataclass(frozen=True, slots=True)
class GradientBuckets:
    """The buckets of a chunk, in the order of its backward pass.

    Args:
        num_layers: [buckets], layers of each bucket; a chunk without layers counts as one layer.
        parameters: [buckets], parameters on one rank.
        experts: [buckets], how many of these parameters belong to experts.
        in_fp8: [buckets], how many of these parameters are weights of fp8 products.
        holds_root: parameters outside the layers are in the bucket of the layer next to them.
            Otherwise they are in the last bucket of their stage, and not counted here.
    """

    num_layers: tuple[int, ...]
    parameters: tuple[int, ...]
    experts: tuple[int, ...]
    in_fp8: tuple[int, ...]
    holds_root: bool

    @property
    def layer_ends(self) -> tuple[int, ...]:
        """[buckets], number of layers that have run backward when each bucket is complete."""
        return tuple(itertools.accumulate(self.num_layers))


def bucket_ops(
    options: StepOptions,
    buckets: GradientBuckets,
    number: int,
    of_stage: Parameters | None,
    *,
    gathers: bool,
) -> tuple[Op, ...]:
    """Return the reduction of a bucket's gradients, or the gather of its parameters.

    `number` is its place in the order of the backward pass. `of_stage` are the parameters of the
    stage if this is its last bucket, else None.
    """
    elements, experts = buckets.parameters[number], buckets.experts[number]
    in_fp8 = buckets.in_fp8[number]
    if of_stage and not buckets.holds_root:
        trained = of_stage.trained
        elements += trained.root
        experts += trained.root_experts
        in_fp8 += trained.root_in_fp8
    if not elements:
        return ()
    if gathers:
        return parameter_gather(options, elements, experts, in_fp8)
    return average(options, elements) + data_reduction(options, elements, experts)


@functools.lru_cache(maxsize=1024)
def buckets_of(
    chunks: tuple[Chunk, ...], microbatch: Microbatch, rule: str | int, replicas: int
) -> tuple[GradientBuckets, ...]:
    """Return the buckets of a model's different chunks, of which the first is of the first stage.

    By Megatron-LM's rule only the first chunk has several buckets, because communication of the
    other chunks is not on the critical path (`DistributedDataParallel`, `disable_bucketing`).
    `replicas` are those of data parallelism, without context parallelism.
    """
    if rule == "layer":
        return tuple(_layer_buckets(chunk, microbatch) for chunk in chunks)
    least = rule
    if not isinstance(least, int):
        least = max(MEGATRON_BUCKET, MEGATRON_BUCKET_OF_A_REPLICA * replicas)
    first, *others = chunks
    return (
        _filled_buckets(first, microbatch, least),
        *(_filled_buckets(chunk, microbatch, None) for chunk in others),
    )


def _layer_buckets(chunk: Chunk, microbatch: Microbatch) -> GradientBuckets:
    layers = [layer.trained for layer in layer_parameters(chunk, microbatch)[::-1]]
    if not layers:
        return GradientBuckets((1,), (0,), (0,), (0,), holds_root=False)
    return GradientBuckets(
        (1,) * len(layers),
        tuple(layer.total for layer in layers),
        tuple(layer.experts for layer in layers),
        tuple(layer.in_fp8 for layer in layers),
        holds_root=False,
    )


def _filled_buckets(chunk: Chunk, microbatch: Microbatch, least: int | None) -> GradientBuckets:
    """Return buckets of at least `least` parameters, except the last; None makes one bucket."""
    layers = _parameters_around_layers(chunk, microbatch)[::-1]
    ends, total = [0], 0
    for place, layer in enumerate(layers, 1):
        total += sum(parameter.elements for parameter in layer)
        if place == len(layers) or (least is not None and total >= least):
            ends.append(place)
            total = 0
    slices = [slice(*pair) for pair in itertools.pairwise(ends)]
    buckets = [[*itertools.chain.from_iterable(layers[part])] for part in slices]
    return GradientBuckets(
        tuple(part.stop - part.start for part in slices),
        tuple(sum(parameter.elements for parameter in bucket) for bucket in buckets),
        tuple(
            sum(parameter.elements for parameter in bucket if parameter.is_expert)
            for bucket in buckets
        ),
        tuple(
            sum(parameter.elements for parameter in bucket if parameter.in_fp8)
            for bucket in buckets
        ),
        holds_root=True,
    )


def _parameters_around_layers(chunk: Chunk, microbatch: Microbatch) -> list[list[Parameter]]:
    """Return the parameters of each layer, with those of blocks outside the layers nearest to it.

    A parameter that two blocks of the chunk share is in the list of the first of them, where its
    gradient is completed. A chunk without layers has one list.
    """
    layers: list[list[Parameter]] = [[]]
    has_layer, tied = False, set[str]()
    for block in chunk.blocks:
        if block.is_unit and has_layer:
            layers.append([])
        has_layer |= block.is_unit
        for parameter in block_parameters(BlockRun(block, microbatch)):
            if parameter.tied not in tied and not parameter.is_frozen:
                layers[-1].append(parameter)
            tied |= {parameter.tied} if parameter.tied else set()
    return layers
