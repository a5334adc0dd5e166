"""Rules of the software stack: refuse entries that have no effect in a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from simtrain.scenario.requirement import value_getter
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Condition, Rule, Violation, registering

SOFTWARE_RULES: list[Rule] = []
_rule = registering(SOFTWARE_RULES)


def _posts_messages(scenario: Scenario) -> bool:
    return scenario.parallelism.pipeline > 1 and not scenario.overlaps_pipeline


def _adds_one_by_one(scenario: Scenario) -> bool:
    model = scenario.model
    return model.biases or model.hidden_dropout > 0 or model.parallel_attention_mlp != "none"


def _launches_experts(scenario: Scenario) -> bool:
    facts = scenario.facts
    is_launched_whole = facts.cuda_graphs or facts.kernels.fused_grouped_mlp
    return scenario.model.experts is not None and not is_launched_whole


def _recomputes_beside_norms(scenario: Scenario) -> bool:
    """Whether recompute frees different tensors if norms are fused into linear layers."""
    model, policy = scenario.model, scenario.recompute
    can_differ = model.parallel_attention_mlp == "none" and not scenario.precision.casts
    if policy.strategy != "selective" or not can_differ:
        return False
    is_dense = model.has_dense_layers
    drops_norms = "layernorm" in policy.modules and (is_dense or model.latent_attention is None)
    return drops_norms or ("mlp" in policy.modules and is_dense)


class _Use(NamedTuple):
    """When an entry of the software stack has an effect.

    Args:
        why_not: why it has none.
        values: values of other fields with which it has an effect.
        is_used: whether it has an effect; by default, whether a field has one of `values`.
    """

    why_not: str
    values: Mapping[str, list[Any]]
    is_used: Condition | None = None


_USES = {
    "fused_softmax": _Use(
        "fused attention has no separate softmax kernel", {"attention_backend": ["unfused"]}
    ),
    "attention_kernel": _Use("attention is not fused", {"attention_backend": ["fused"]}),
    "attention_speed": _Use("attention is not fused", {"attention_backend": ["fused"]}),
    "fused_rotary": _Use(
        "the model has no rotary embedding", {"model.position_embedding": ["rope"]}
    ),
    "complex_rotary": _Use(
        "the model has no rotary embedding, or its rotation is one kernel",
        {"model.position_embedding": ["rope"], "software.fused_rotary": [False]},
        lambda scenario: (
            scenario.model.position_embedding == "rope" and not scenario.facts.kernels.fused_rotary
        ),
    ),
    "repeated_keys": _Use(
        "attention is not fused, or each query head has keys of its own",
        {"attention_backend": ["fused"]},
        lambda scenario: (
            scenario.attention_backend == "fused"
            and scenario.model.num_query_groups not in (None, scenario.model.num_attention_heads)
        ),
    ),
    "fused_rms_norm": _Use("the model has no RMS norm", {"model.normalization": ["rms_norm"]}),
    "fused_activation": _Use(
        "a GeLU without bias is always one kernel",
        {"model.biases": [True]},
        lambda scenario: scenario.model.biases or scenario.model.activation != "gelu",
    ),
    "fused_dropout_add": _Use(
        "the model adds neither biases nor dropout to its residuals",
        {"model.biases": [True]},
        _adds_one_by_one,
    ),
    "cross_entropy_fusion": _Use(
        "the cross entropy is not fused",
        {"software.fused_cross_entropy": [True]},
        lambda scenario: scenario.facts.kernels.fused_cross_entropy,
    ),
    "fp8_columns": _Use(
        "products are not in fp8 with the recipe blockwise",
        {"precision.fp8_recipe": ["blockwise"], "precision.compute": ["bf16"]},
        lambda scenario: scenario.fp8_recipe == "blockwise",
    ),
    "grouped_products": _Use(
        "the host launches no products of experts one by one",
        {"software.cuda_graphs": [False], "software.fused_grouped_mlp": [False]},
        _launches_experts,
    ),
    "fused_grouped_mlp": _Use(
        "the model has no experts with products in mxfp8",
        {"precision.fp8_recipe": ["mxfp8"]},
        lambda scenario: scenario.model.experts and scenario.fp8_recipe == "mxfp8",
    ),
    "paged_stash": _Use(
        "the MLP of experts is not fused",
        {"software.fused_grouped_mlp": [True]},
        lambda scenario: scenario.model.experts and scenario.facts.kernels.fused_grouped_mlp,
    ),
    "checkpointed_fp32_norms": _Use(
        "norms over a grid of ranks are kernels of their own",
        {"parallelism.tensor_split": ["1d"]},
        lambda scenario: scenario.parallelism.grid_sizes is None,
    ),
    "separate_masking": _Use(
        "mask and softmax are one kernel",
        {"attention_backend": ["unfused"], "software.fused_softmax": [False]},
        lambda scenario: (
            scenario.attention_backend == "unfused" and not scenario.facts.kernels.fused_softmax
        ),
    ),
    "norm_in_linear": _Use(
        "this scenario recomputes nothing that depends on fusing norms into linear layers",
        {"recompute.modules": [["mlp"]]},
        _recomputes_beside_norms,
    ),
    "fused_optimizer": _Use("Adam runs on the host", {"memory.offload_optimizer": [False]}),
    "fused_gradient_accumulation": _Use(
        "fully_shard adds no gradients up before it reduces them",
        {"memory.reduce_every_microbatch": [False]},
        lambda scenario: not (scenario.fully_shards and scenario.reduces_every_microbatch),
    ),
    "fully_shard": _Use(
        "parameters are not sharded (memory.zero_stage 3)", {"memory.zero_stage": [3]}
    ),
    "expert_workspaces": _Use(
        "the model has no experts",
        {"model.experts": []},
        lambda scenario: scenario.model.experts is not None,
    ),
    "cublas_workspace": _Use(
        "PyTorch keeps no workspaces",
        {"software.torch_workspaces": [2]},
        lambda scenario: scenario.facts.torch_workspaces > 0,
    ),
    "cuda_graph_modules": _Use(
        "CUDA graphs launch whole passes",
        {"software.cuda_graphs": [False]},
        lambda scenario: not scenario.facts.cuda_graphs,
    ),
    "host_call": _Use(
        "CUDA graphs launch whole passes",
        {"software.cuda_graphs": [False]},
        lambda scenario: not scenario.facts.cuda_graphs,
    ),
    "blocking_launches": _Use(
        "CUDA graphs launch whole passes",
        {"software.cuda_graphs": [False]},
        lambda scenario: not scenario.facts.cuda_graphs,
    ),
    "host_issue": _Use(
        "CUDA graphs launch whole passes",
        {"software.cuda_graphs": [False]},
        lambda scenario: not scenario.facts.cuda_graphs or _posts_messages(scenario),
    ),
}
"""The use of each entry; all other entries always have an effect."""


def _is_used(name: str, scenario: Scenario) -> object:
    use = _USES[name]
    if use.is_used is not None:
        return use.is_used(scenario)
    return any(value_getter(field)(scenario) in values for field, values in use.values.items())


@_rule(
    "E380",
    "an entry that has no effect in a scenario is probably a mistake",
    what="An entry of the software stack has no effect in this scenario.",
    fix="Remove the entry, or apply the fix in the error message.",
    example="software: {fused_rotary: false}",
)
def _entries_are_used(scenario: Scenario) -> Violation | None:
    unused = {
        f"software.{name}": use
        for name, use in _USES.items()
        if getattr(scenario.software, name) is not None and not _is_used(name, scenario)
    }
    if not unused:
        return None
    message = "; ".join(f"{field} is set, but {use.why_not}" for field, use in unused.items())
    values: dict[str, list[Any]] = {field: [None] for field in unused}
    for use in unused.values():
        values |= use.values
    return Violation(message, values, tuple(unused))


@_rule(
    "E381",
    "a fused cross entropy subtracts the maximum in the kernel of the exponentials",
    what="in_place_cross_entropy is set, but the cross entropy is fused.",
    fix=("Remove memory.in_place_cross_entropy, or set software.fused_cross_entropy to false."),
    example=("memory: {in_place_cross_entropy: true}\nsoftware: {fused_cross_entropy: true}"),
)
def _loss_keeps_fp32_logits(scenario: Scenario) -> Violation | None:
    field = "memory.in_place_cross_entropy"
    is_fused = scenario.facts.kernels.fused_cross_entropy
    if scenario.memory.in_place_cross_entropy is None or not is_fused:
        return None
    message = f"{field} is set, but the software stack fuses the cross entropy"
    return Violation(message, {field: [None], "software.fused_cross_entropy": [False]}, (field,))
