"""Model states of a rank, and its buffers besides states and activations, by name.

During passes: Megatron-LM's global memory buffer, as large as the largest request of the ops that
share it (`get_global_memory_buffer().get_tensor(..., "mpu")`); Transformer Engine's userbuffers,
registered once; and unsharded parameters and gradients of ZeRO.

Always: workspaces of matrix products. PyTorch has one for each of its cuBLAS handles and streams,
Transformer Engine one for all its linear layers and more for grouped products. A stage without the
products of a workspace does not allocate it; all stages are assumed to have each kind.

During the optimizer step: the fp32 copy of 16-bit gradients (Megatron-LM's
`Float16OptimizerWithFloat16Params`; the flattened fp32 buffer of ZeRO, Section 3.2), and for an
unfused Adam an array of the roots of the variances (torch.optim's `_multi_tensor_adamw`). The
gradient reduction needs no buffer: gradients are contiguous and reduced in place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.values import dataclass, replace
from simtrain.hardware.profile import HardwareProfile, Memory
from simtrain.iteration.memory.working import times_exchanges
from simtrain.iteration.plan import Plan
from simtrain.units import format_bytes, gib
from simtrain.workload.blocks.linear import NUM_STREAMS, registered_bytes
from simtrain.workload.chunk import Parameters
from simtrain.workload.fp8 import RECIPES
from simtrain.workload.optimizer import StepOptions
from simtrain.workload.passes import Pass, record_pass
from simtrain.workload.work import FP32_BYTES

# Model states: parameters, gradients, and the optimizer states of Adam.
#
# Sources: Rajbhandari et al., "ZeRO" (2020), Section 3.1: 2Ψ + 2Ψ + 12Ψ bytes of mixed-precision
# Adam, sharded over the replicas from the optimizer states (stage 1) over the gradients (2) to the
# parameters (3). Megatron-LM accumulates gradients in fp32: 18 bytes per parameter.


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Bytes of model states on a rank, which stay for the whole training.

    With fully_shard and one microbatch, gradients exist from their reduction to the step only.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    def __repr__(self) -> str:
        sizes = {"parameters": self.parameters_bytes, "gradients": self.gradients_bytes}
        sizes |= {"optimizer": self.optimizer_bytes}
        words = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
        return f"<ModelStates: {words}>"

    def with_gradients(self, gradients_bytes: int) -> ModelStates:
        return replace(self, gradients_bytes=gradients_bytes)

    @property
    def total_bytes(self) -> int:
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def rank_states(options: StepOptions, parameters: Parameters) -> ModelStates:
    """Return the model states of a rank with these parameters; frozen ones have weights only."""
    trained = parameters.trained
    numbers = parameters.total, parameters.experts, parameters.in_fp8
    return model_states(options, *numbers, trained=(trained.total, trained.experts))


def model_states(
    options: StepOptions,
    num_parameters: int,
    num_expert: int = 0,
    num_fp8: int = 0,
    *,
    trained: tuple[int, int] | None = None,
) -> ModelStates:
    """Return the model states of a rank under ZeRO and offload.

    `num_parameters` are those before ZeRO. `trained` are those with gradients and optimizer states,
    and how many of them belong to experts; all parameters by default.
    """
    num_trained, trained_experts = trained or (num_parameters, num_expert)

    def num_held(from_stage: int) -> int:
        return options.held(num_trained, trained_experts, from_stage=from_stage)

    of_experts = num_expert if num_fp8 else 0
    return ModelStates(
        parameters_bytes=options.weights_bytes(
            options.held(num_parameters, num_expert, from_stage=3),
            options.held(num_fp8, of_experts, from_stage=3),
        ),
        gradients_bytes=num_trained * options.gradient_bytes
        if options.keeps_gradients
        else num_held(2) * options.shard_gradient_bytes,
        optimizer_bytes=0 if options.offloads else sum(options.state_bytes) * num_held(1),
    )


@dataclass(frozen=True, slots=True)
class HostMemory(PlainData):
    """Memory of a node's host that holds the states of its ranks.

    Args:
        needed_bytes: what the ranks of the fullest node need.
        capacity_bytes: memory of the host; None if the profile does not say it.
    """

    json_fields: ClassVar = keys("needed_bytes capacity_bytes fits")

    needed_bytes: int
    capacity_bytes: int | None

    def __repr__(self) -> str:
        capacity = "" if self.capacity_bytes is None else f" of {format_bytes(self.capacity_bytes)}"
        return f"<HostMemory {format_bytes(self.needed_bytes)}{capacity}>"

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.needed_bytes <= self.capacity_bytes

    @property
    def shortage(self) -> str:
        """What does not fit: "offloaded states need 12 GiB of a node's host, which has 8 GiB"."""
        needs = f"offloaded states need {gib(self.needed_bytes)} GiB of a node's host"
        return f"{needs}, which has {gib(self.capacity_bytes or 0)} GiB"


def host_memory(plan: Plan, profile: HardwareProfile) -> HostMemory | None:
    """Add up the states on the host of a node's consecutive ranks; None without such states."""
    if not plan.step_options.offloads:
        return None
    of_stages = [host_bytes(plan.step_options, each) for each in plan.stage_parameters]
    per_node, stride = profile.cluster.gpus_per_node.value, plan.mesh.stride("pp")
    if stride >= per_node:
        needed = per_node * max(of_stages)
    else:
        together = per_node // stride
        firsts = range(0, plan.mesh.pp, together)
        needed = stride * max(sum(of_stages[first : first + together]) for first in firsts)
    memory = profile.host_link.memory if profile.host_link else None
    return HostMemory(needed, memory.value if memory else None)


def host_bytes(options: StepOptions, parameters: Parameters) -> int:
    """Return the bytes of a rank's states on the host: gradients, and the optimizer's states.

    ZeRO-Offload, Section 3, counts 2 + 12 bytes per parameter. Adam reads gradients in fp32, so
    those in another type exist twice.
    """
    trained = parameters.trained
    number = options.held(trained.total, trained.experts, from_stage=1)
    converted = FP32_BYTES if options.gradient_bytes != FP32_BYTES else 0
    return number * (options.gradient_bytes + converted + sum(options.state_bytes))


Buffers = dict[str, int]
RECOMPUTED, WORKING = "recomputed tensors", "working tensors"
GLOBAL, FP32_GRADIENTS = "global memory buffer", "gradients in fp32"
OPTIMIZER_ARRAY = "array of the optimizer's kernels"
FP8_WEIGHTS, FP4_WEIGHTS = "fp8 copies of weights", "fp4 copies of weights"
USERBUFFERS = "userbuffers"
WORKSPACES = "workspaces of products"
OTHER_TENSORS = "batch and buffers of modules"
GATHERED_PARAMETERS, GRADIENT_BUCKET = "gathered parameters", "gradient bucket"


def buffers_of(
    plan: Plan,
    parameters: Parameters,
    global_bytes: int,
    chunks: Sequence[int] = (0,),
    *,
    reads_fp8_both_ways: bool = False,
) -> tuple[Buffers, Buffers]:
    """Return a rank's buffers during passes (at their peak) and during the optimizer step.

    `global_bytes` are those that ops need of the global buffer.
    """
    options = plan.step_options
    gathered, bucket = _exchanged_bytes(plan, chunks)
    copied = options.shard_gradient_bytes != FP32_BYTES and not options.narrow_states
    trained = parameters.trained
    fp32_bytes = options.held(trained.total, trained.experts, from_stage=1) * FP32_BYTES
    is_on_host = options.offloads
    cast_weights = FP4_WEIGHTS if plan.scenario.precision.compute == "fp4" else FP8_WEIGHTS
    always = {
        USERBUFFERS: registered_bytes(plan.microbatch) if plan.options.overlap.userbuffers else 0,
        cast_weights: options.fp8_copies_bytes(
            parameters.in_fp8, _fp8_copies(options, reads_fp8_both_ways=reads_fp8_both_ways)
        ),
    }
    running = {GLOBAL: global_bytes, GATHERED_PARAMETERS: gathered, GRADIENT_BUCKET: bucket}
    stepping = {
        GLOBAL: global_bytes,
        FP32_GRADIENTS: fp32_bytes if copied and not is_on_host else 0,
        OPTIMIZER_ARRAY: 0 if options.fused_adam or is_on_host else fp32_bytes,
    }
    return running | always, stepping | always


def _fp8_copies(options: StepOptions, *, reads_fp8_both_ways: bool) -> int:
    """Return how many fp8 copies of each weight stay, besides weights that are kept in fp8.

    With one scale per tensor, products that read both ways need no transpose, and Transformer
    Engine makes none: pytorch/csrc/quantizer.cpp (`nvte_is_non_tn_fp8_gemm_supported`) and
    pytorch/tensor/_internal/float8_tensor_base.py (`update_usage`). With a scale for each block the
    copy by columns is cast from other numbers, so it stays.
    """
    recipe = RECIPES.get(options.fp8_recipe)
    if reads_fp8_both_ways and recipe and not recipe.block:
        return min(options.fp8_copies, 1 - options.keeps_fp8)
    return options.fp8_copies


def workspaces_bytes(plan: Plan, memory: Memory) -> tuple[int, int]:
    """Return the bytes of PyTorch's workspaces and of Transformer Engine's on each rank."""
    scenario, of_torch, of_linear = plan.scenario, memory.torch_workspace, memory.linear_workspace
    facts = scenario.facts
    torch_bytes = facts.cublas_workspace or (of_torch.value if of_torch else 0)
    linear = facts.linear_workspaces * (NUM_STREAMS if scenario.overlap.userbuffers else 1)
    experts = facts.expert_workspaces if scenario.model.experts else 0
    linear_bytes = of_linear.value if of_linear else 0
    return facts.torch_workspaces * torch_bytes, (linear + experts) * linear_bytes


def _exchanged_bytes(plan: Plan, chunks: Sequence[int]) -> tuple[int, int]:
    """Return the peaks of gathered parameters and of unreduced gradients.

    Both are 0 if the memory of passes includes them (`times_exchanges`).

    In a pipeline, all parameters are unsharded from the first backward pass of each chunk until the
    reduction of gradients. A forward pass adds the buffers from which it copies parameters.
    """
    if not plan.options.sharding or times_exchanges(plan):
        return 0, 0
    passes = [
        (variant.chunk, *_unsharded_bytes(_of_one_sequence(pass_)))
        for variant, pass_ in plan.passes.items()
        if variant.chunk in chunks
    ]
    ends = {
        variant.chunk: _unsharded_bytes(_of_one_sequence(pass_))
        for variant, pass_ in plan.reductions.items()
        if variant.chunk in chunks
    }
    if not ends:
        return max(gathered for _, gathered, _ in passes), max(bucket for *_, bucket in passes)
    beside = max(gathered - ends[chunk][0] for chunk, gathered, _ in passes)
    whole = sum(ends[chunk][0] for chunk in chunks)
    return whole + max(0, beside), max(bucket for _, bucket in ends.values())


def _of_one_sequence(pass_: Pass) -> Pass:
    batch = replace(pass_.options.microbatch, sequences=1, sequence_parallel=False)
    return replace(pass_, options=replace(pass_.options, microbatch=batch))


@functools.lru_cache(maxsize=4096)
def _unsharded_bytes(pass_: Pass) -> tuple[int, int]:
    record = record_pass(pass_)
    return record.gathered_bytes, record.bucket_bytes
