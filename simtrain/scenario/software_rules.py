"""Rules of the software stack: refuse entries that have no effect in a scenario."""

from __future__ import annotations

from simtrain.scenario.rule import Condition, Rules
from simtrain.scenario.schema import Scenario

SOFTWARE_RULES = Rules()
rule = SOFTWARE_RULES.rule


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


def _fuses_attention(scenario: Scenario) -> bool:
    return scenario.attention_backend == "fused"


def _has_rotary(scenario: Scenario) -> bool:
    return scenario.model.position_embedding == "rope"


def _launches_kernels(scenario: Scenario) -> bool:
    return not scenario.facts.cuda_graphs


_IN_GRAPHS = "CUDA graphs launch whole passes"
_USES: dict[str, tuple[Condition, str]] = {
    "fused_softmax": (
        lambda scenario: not _fuses_attention(scenario),
        "fused attention has no separate softmax kernel",
    ),
    "attention_kernel": (_fuses_attention, "attention is not fused"),
    "attention_speed": (_fuses_attention, "attention is not fused"),
    "fused_rotary": (_has_rotary, "the model has no rotary embedding"),
    "complex_rotary": (
        lambda scenario: _has_rotary(scenario) and not scenario.facts.kernels.fused_rotary,
        "the model has no rotary embedding, or its rotation is one kernel",
    ),
    "repeated_keys": (
        lambda scenario: (
            _fuses_attention(scenario)
            and scenario.model.num_query_groups not in (None, scenario.model.num_attention_heads)
        ),
        "attention is not fused, or each query head has keys of its own",
    ),
    "fused_rms_norm": (
        lambda scenario: scenario.model.normalization == "rms_norm",
        "the model has no RMS norm",
    ),
    "fused_activation": (
        lambda scenario: scenario.model.biases or scenario.model.activation != "gelu",
        "a GeLU without bias is always one kernel",
    ),
    "fused_dropout_add": (
        _adds_one_by_one,
        "the model adds neither biases nor dropout to its residuals",
    ),
    "cross_entropy_fusion": (
        lambda scenario: scenario.facts.kernels.fused_cross_entropy,
        "the cross entropy is not fused",
    ),
    "fp8_columns": (
        lambda scenario: scenario.fp8_recipe == "blockwise",
        "products are not in fp8 with the recipe blockwise",
    ),
    "grouped_products": (_launches_experts, "the host launches no products of experts one by one"),
    "fused_grouped_mlp": (
        lambda scenario: scenario.model.experts and scenario.fp8_recipe == "mxfp8",
        "the model has no experts with products in mxfp8",
    ),
    "paged_stash": (
        lambda scenario: scenario.model.experts and scenario.facts.kernels.fused_grouped_mlp,
        "the MLP of experts is not fused",
    ),
    "checkpointed_fp32_norms": (
        lambda scenario: scenario.parallelism.grid_sizes is None,
        "norms over a grid of ranks are kernels of their own",
    ),
    "separate_masking": (
        lambda scenario: (
            not _fuses_attention(scenario) and not scenario.facts.kernels.fused_softmax
        ),
        "mask and softmax are one kernel",
    ),
    "norm_in_linear": (
        _recomputes_beside_norms,
        "this scenario recomputes nothing that depends on fusing norms into linear layers",
    ),
    "fused_optimizer": (
        lambda scenario: not scenario.memory.offload_optimizer,
        "Adam runs on the host",
    ),
    "fused_gradient_accumulation": (
        lambda scenario: not (scenario.fully_shards and scenario.reduces_every_microbatch),
        "fully_shard adds no gradients up before it reduces them",
    ),
    "fully_shard": (
        lambda scenario: scenario.memory.zero_stage == 3,
        "parameters are not sharded (memory.zero_stage 3)",
    ),
    "expert_workspaces": (
        lambda scenario: scenario.model.experts is not None,
        "the model has no experts",
    ),
    "cublas_workspace": (
        lambda scenario: scenario.facts.torch_workspaces > 0,
        "PyTorch keeps no workspaces",
    ),
    "cuda_graph_modules": (_launches_kernels, _IN_GRAPHS),
    "host_call": (_launches_kernels, _IN_GRAPHS),
    "blocking_launches": (_launches_kernels, _IN_GRAPHS),
    "host_issue": (
        lambda scenario: _launches_kernels(scenario) or _posts_messages(scenario),
        _IN_GRAPHS,
    ),
}
"""When an entry has an effect, and why it has none otherwise; all other entries always have one."""


@rule(
    "E380",
    "an entry that has no effect in a scenario is probably a mistake",
    "software: {fused_rotary: false}",
)
def _entries_are_used(scenario: Scenario) -> str | None:
    unused = [
        f"software.{name} is set, but {why_not}"
        for name, (is_used, why_not) in _USES.items()
        if getattr(scenario.software, name) is not None and not is_used(scenario)
    ]
    return "; ".join(unused) or None


@rule(
    "E381",
    "a fused cross entropy subtracts the maximum in the kernel of the exponentials",
    "memory: {in_place_cross_entropy: true}\nsoftware: {fused_cross_entropy: true}",
)
def _loss_keeps_fp32_logits(scenario: Scenario) -> str | None:
    field = "memory.in_place_cross_entropy"
    is_fused = scenario.facts.kernels.fused_cross_entropy
    if scenario.memory.in_place_cross_entropy is None or not is_fused:
        return None
    return f"{field} is set, but the software stack fuses the cross entropy"
