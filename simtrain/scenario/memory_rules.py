"""Rules of what fills memory: sharded states and recompute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simtrain.scenario.rule import Rules, against, any_but, at_least, excludes, requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import MODULES, Module

# Rules of data parallelism: combinations of options that the frameworks refuse.
#
# Sources: Megatron-LM's training/arguments.py and core/pipeline_parallel/schedules.py; PyTorch's
# torch/distributed/fsdp/_fully_shard.


MEMORY_RULES = Rules()
rule = MEMORY_RULES.rule


def _least_replicas(scenario: Scenario) -> int:
    return 2 if scenario.parallelism.context == 1 else 1


def sharding_ranks(scenario: Scenario) -> int:
    """Ranks over which each parameter is sharded."""
    split = scenario.parallelism
    return (scenario.memory.shard_over or split.data) * split.context


def _fully_shards_pipeline(scenario: Scenario) -> bool:
    return scenario.fully_shards and scenario.parallelism.pipeline > 1


MEMORY_RULES += [
    requires(
        "E360",
        "overlap.parameter_gather",
        needs={"overlap.data_parallel": True},
        off=False,
        why="parameters are gathered in the buckets of the overlapped gradient reduction "
        "(--overlap-param-gather needs --overlap-grad-reduce)",
        example="memory: {zero_stage: 1}\nparallelism: {data: 2}\noverlap: {parameter_gather: "
        "true}",
    ),
    requires(
        "E361",
        "overlap.parameter_gather",
        needs={"memory.zero_stage": 1},
        off=False,
        why="only the distributed optimizer (stage 1) overlaps the gather of parameters with "
        "the next forward pass; stage 0 gathers nothing, stage 2 gathers all parameters "
        "after the optimizer, and stage 3 gathers them within every pass",
        example="overlap: {data_parallel: true, parameter_gather: true}",
    ),
    excludes(
        "E362",
        "overlap.gradient_buckets",
        "gradients are not reduced in buckets",
        lambda scenario: not scenario.reduces_in_buckets,
        reads=("overlap.data_parallel", "memory.zero_stage", "parallelism.data"),
        why="gradients are reduced in buckets only if several replicas reduce them once per "
        "iteration, overlapped with the backward pass",
        example="overlap: {gradient_buckets: megatron}",
    ),
    excludes(
        "E363",
        "overlap.align_gradient_reduction",
        "no two stages overlap the gradient reduction with the backward pass",
        lambda scenario: scenario.parallelism.pipeline < 2 or not scenario.reduces_in_buckets,
        reads=("overlap.data_parallel", "parallelism.pipeline", "parallelism.data"),
        off=False,
        why="only pipeline stages that overlap the gradient reduction with the backward pass can "
        "be aligned",
        example="overlap: {data_parallel: true, align_gradient_reduction: true}",
    ),
    excludes(
        "E364",
        "overlap.align_parameter_gather",
        "no interleaved chunks overlap the gather of parameters with forward passes",
        lambda scenario: (
            not (scenario.overlaps_parameter_gather and scenario.schedule_family.gathers_by_chunk)
        ),
        reads=("overlap.parameter_gather", "schedule"),
        off=False,
        why="only the interleaved schedule gathers parameters ahead, chunk by chunk (Megatron-LM "
        "turns --align-param-gather off in the other schedules)",
        example="overlap: {align_parameter_gather: true}",
    ),
    against(
        "E365",
        lambda scenario: (
            scenario.memory.shard_over is not None
            and (
                scenario.memory.shard_over < _least_replicas(scenario)
                or scenario.parallelism.data % scenario.memory.shard_over != 0
            )
        ),
        "memory.shard_over is {scenario.memory.shard_over}, which cannot shard states over "
        "parallelism.data ({scenario.parallelism.data}) replicas",
        why="states are sharded over groups of replicas of equal size, each with at least 2 ranks",
        example="parallelism: {data: 4}\nmemory: {zero_stage: 1, shard_over: 3}",
    ),
    requires(
        "E366",
        "memory.shard_over",
        needs={"memory.zero_stage": at_least(1)},
        why="without ZeRO (or the distributed optimizer), every replica holds all states unsharded",
        example="parallelism: {data: 4}\nmemory: {shard_over: 2}",
    ),
    requires(
        "E367",
        "overlap.prefetch",
        needs={"memory.zero_stage": 3, "overlap.data_parallel": True},
        why="only gathers that overlap with compute can run ahead of it",
        example="parallelism: {data: 4}\noverlap: {prefetch: 2}",
    ),
    excludes(
        "E368",
        "memory.reshard_after_forward",
        "parameters are not gathered for each pass",
        lambda scenario: (
            not (
                (scenario.memory.zero_stage == 3 and scenario.schedule_family.alternates)
                or _fully_shards_pipeline(scenario)
            )
        ),
        reads=("memory.zero_stage", "schedule"),
        why="only stage 3 gathers parameters for each pass and can keep them until the backward "
        "pass; with gpipe, other forward passes run in between",
        example="memory: {reshard_after_forward: false}",
    ),
    requires(
        "E370",
        "memory.reduce_every_microbatch",
        needs={"memory.zero_stage": (2, 3)},
        why="without sharded gradients (stages 0 and 1), gradients are always reduced only "
        "after the last microbatch",
        example="memory: {reduce_every_microbatch: false}",
    ),
    requires(
        "E379",
        "memory.reduce_every_microbatch",
        needs={"parallelism.pipeline": 1},
        off=False,
        where=lambda scenario: scenario.fully_shards,
        why="torch.distributed.pipelining accumulates the gradients of all microbatches and "
        "then reduces them once (stage.py, perform_reduce_grad)",
        example="parallelism: {pipeline: 4, data: 2}\n"
        "model: {tied_embeddings: false}\n"
        "memory: {zero_stage: 3}\n"
        "software: torchtitan",
    ),
    against(
        "E397",
        lambda scenario: _fully_shards_pipeline(scenario) and scenario.model.shares_embedding,
        "model.tied_embeddings or multi-token prediction makes the first and the last of "
        "{scenario.parallelism.pipeline} stages share an embedding that fully_shard shards",
        why="torchtitan does not support tied embeddings in a pipeline: the first and the last "
        "stage hold separate parameters",
        example="parallelism: {pipeline: 4, data: 2}\n"
        "memory: {zero_stage: 3, reduce_every_microbatch: false}\n"
        "software: torchtitan",
    ),
    requires(
        "E378",
        "memory.offload_optimizer",
        needs={"software.fully_shard": False},
        where=lambda scenario: scenario.fully_shards,
        why="fully_shard offloads parameters and gradients together with the optimizer states "
        "(CPUOffloadPolicy), which is not simulated",
        example="parallelism: {data: 4}\n"
        "memory: {zero_stage: 3, offload_optimizer: true}\n"
        "software: torchtitan",
    ),
]


# Rules of selective recompute and of its modules.
#
# Source: Megatron-LM's transformer_config.py (`__post_init__`). Megatron-LM accepts modules that no
# layer has and recomputes nothing; simtrain refuses them, because they have no effect.

_NOT_WITH_DELAYED: set[Module] = {"layernorm", "moe_act"}


def norm_is_in_linear(scenario: Scenario) -> bool:
    """Whether a norm is fused into the next linear layer, as always in fp8 and fp4."""
    return scenario.facts.kernels.norm_in_linear or scenario.precision.casts


def _has_norm(scenario: Scenario) -> bool:
    model = scenario.model
    is_one_branch = model.parallel_attention_mlp == "none"
    has_other = model.latent_attention is not None or model.experts is not None
    return is_one_branch and (has_other or not norm_is_in_linear(scenario))


_NEEDS: Mapping[Module, tuple[Callable[[Scenario], object], str]] = {
    "layernorm": (
        _has_norm,
        "each norm is fused into a linear layer (software.norm_in_linear) or feeds two branches",
    ),
    "mla_up_proj": (
        lambda scenario: scenario.model.latent_attention,
        "the model has no latent attention",
    ),
    "mlp": (lambda scenario: scenario.model.has_dense_layers, "no layer has a dense MLP"),
    "moe": (lambda scenario: scenario.model.experts, "the model has no experts"),
    "moe_act": (lambda scenario: scenario.model.experts, "the model has no experts"),
    "shared_experts": (
        lambda scenario: scenario.model.experts and scenario.model.experts.shared_ffn_hidden_size,
        "the model has no shared expert",
    ),
}
"""For each module, the condition that a model has it, and the reason if it does not."""


def absent_modules(scenario: Scenario) -> dict[Module, str]:
    """Return the modules that no layer of the model has, each with the reason."""
    return {module: why for module, (has, why) in _NEEDS.items() if not has(scenario)}


RECOMPUTE_RULES = Rules()
RECOMPUTE_RULES += [
    requires(
        "E318",
        ("recompute.method", "recompute.num_layers"),
        needs={"recompute.strategy": "full"},
        why="only full recompute reads method and num_layers",
        example="recompute: {strategy: selective, method: block, num_layers: 2}",
        first=("recompute.strategy",),
    ),
    requires(
        "E338",
        "recompute.strategy",
        needs={"software.cuda_graphs": False},
        off="none",
        where=lambda scenario: not scenario.facts.recompute_in_cuda_graphs,
        why="Megatron-LM captures whole layers in CUDA graphs only without recompute",
        example="software: {cuda_graphs: true}\nrecompute: selective",
    ),
    requires(
        "E346",
        "recompute.modules",
        needs={"recompute.strategy": "selective"},
        why="only selective recompute reads recompute.modules",
        example="recompute: {strategy: full, modules: [mlp]}",
        first=("recompute.strategy",),
    ),
    requires(
        "E386",
        "recompute.saved_ops",
        needs={"recompute.strategy": "ops"},
        why="only recompute by op reads recompute.saved_ops",
        example="recompute: {strategy: full, saved_ops: [attention]}",
        first=("recompute.strategy",),
    ),
    excludes(
        "E392",
        "recompute.strategy",
        "the software stack checkpoints only modules or layers",
        lambda scenario: not scenario.facts.checkpoints_ops,
        reads=("software.stack",),
        off=any_but("ops"),
        why="Megatron-LM checkpoints modules and layers; saving single ops is PyTorch's selective "
        "activation checkpointing",
        example="recompute: ops",
    ),
    against(
        "E348",
        lambda scenario: (
            _recomputes(scenario, {"shared_experts"}) and scenario.overlap.shared_expert
        ),
        "recompute.modules contains shared_experts while overlap.shared_expert is true",
        why="Megatron-LM cannot recompute a shared expert that overlaps with the all-to-alls",
        example="model: {experts: {num: 8, top_k: 2, ffn_hidden_size: 512, shared_ffn_hidden_size: "
        "512},\n"
        "        biases: false, activation: swiglu, hidden_dropout: 0}\n"
        "overlap: {shared_expert: true}\n"
        "recompute: {modules: [shared_experts]}",
    ),
    against(
        "E349",
        lambda scenario: (
            scenario.fp8_recipe in ("delayed", "nvfp4") and _recomputes(scenario, _NOT_WITH_DELAYED)
        ),
        "recompute.modules contains layernorm or moe_act while precision.compute is "
        "{scenario.precision.compute} with fp8_recipe {scenario.precision.fp8_recipe}",
        why="linear layers cast inputs that are recomputed a second time, but delayed scaling "
        "has one scale for both times (Megatron-LM and Transformer Engine refuse it); in fp4 it "
        "is not simulated",
        example="precision: {compute: fp8}\n"
        "cluster: h100_sxm\n"
        "model: {experts: {num: 8, top_k: 2, ffn_hidden_size: 512}, biases: false, "
        "activation: swiglu,\n"
        "        hidden_dropout: 0}\n"
        "recompute: {modules: [moe_act]}",
    ),
]


def _recomputes(scenario: Scenario, modules: set[Module]) -> set[Module]:
    policy = scenario.recompute
    return modules & {*policy.modules} if policy.strategy == "selective" else set()


@RECOMPUTE_RULES.rule(
    "E347",
    "the model has no such module, so recomputing it would have no effect",
    "recompute: {modules: [core_attention, moe]}",
    hint="write recompute: none, or recompute.modules that the model has",
)
def _modules_exist(scenario: Scenario) -> str | None:
    absent = absent_modules(scenario)
    named = _recomputes(scenario, {*absent})
    if not named:
        return None
    reasons = (f"{module}, but {absent[module]}" for module in MODULES if module in named)
    return f"recompute.modules contains {'; '.join(reasons)}"
