"""Rules of the software stack: refuse entries that have no effect in a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering

SOFTWARE_RULES: list[Rule] = []
_rule = registering(SOFTWARE_RULES)


def _posts_messages(scenario: Scenario) -> bool:
    return scenario.parallelism.pipeline > 1 and not scenario.overlap.pipeline


def _adds_one_by_one(scenario: Scenario) -> bool:
    model = scenario.model
    return model.biases or model.hidden_dropout > 0 or model.parallel_attention_mlp != "none"


def _recomputes_beside_norms(scenario: Scenario) -> bool:
    """Whether recompute frees different tensors if norms are fused into linear layers."""
    model, policy = scenario.model, scenario.recompute
    can_differ = model.parallel_attention_mlp == "none" and scenario.precision.compute != "fp8"
    if policy.strategy != "selective" or not can_differ:
        return False
    is_dense = model.has_dense_layers
    drops_norms = "layernorm" in policy.modules and (is_dense or model.latent_attention is None)
    return drops_norms or ("mlp" in policy.modules and is_dense)


_Used = Callable[[Scenario], object]
_USED: Mapping[str, tuple[_Used, str, Mapping[str, list[Any]]]] = {
    "fused_softmax": (
        lambda one: one.attention_backend == "unfused",
        "fused attention has no separate softmax kernel",
        {"attention_backend": ["unfused"]},
    ),
    "attention_speed": (
        lambda one: one.attention_backend == "fused",
        "attention is not fused",
        {"attention_backend": ["fused"]},
    ),
    "fused_rotary": (
        lambda one: one.model.position_embedding == "rope",
        "the model has no rotary embedding",
        {"model.position_embedding": ["rope"]},
    ),
    "fused_rms_norm": (
        lambda one: one.model.normalization == "rms_norm",
        "the model has no RMS norm",
        {"model.normalization": ["rms_norm"]},
    ),
    "fused_activation": (
        lambda one: one.model.biases or one.model.activation != "gelu",
        "a GeLU without bias is always one kernel",
        {"model.biases": [True]},
    ),
    "fused_dropout_add": (
        _adds_one_by_one,
        "the model adds neither biases nor dropout to its residuals",
        {"model.biases": [True]},
    ),
    "norm_in_linear": (
        _recomputes_beside_norms,
        "this scenario recomputes nothing that depends on fusing norms into linear layers",
        {"recompute.modules": [["mlp"]]},
    ),
    "fused_optimizer": (
        lambda one: not one.memory.offload_optimizer,
        "Adam runs on the host",
        {"memory.offload_optimizer": [False]},
    ),
    "fused_gradient_accumulation": (
        lambda one: not (one.fully_shards and one.reduces_every_microbatch),
        "fully_shard adds no gradients up before it reduces them",
        {"memory.reduce_every_microbatch": [False]},
    ),
    "fully_shard": (
        lambda one: one.memory.zero_stage == 3,
        "parameters are not sharded (memory.zero_stage 3)",
        {"memory.zero_stage": [3]},
    ),
    "host_issue": (
        lambda one: not one.facts.cuda_graphs or _posts_messages(one),
        "CUDA graphs launch whole passes",
        {"software.cuda_graphs": [False]},
    ),
}
"""For each entry, the condition that it has an effect, why it has none, and values that use it.

All other entries always have an effect."""


@_rule("E380", "an entry that has no effect in a scenario is probably a mistake")
def _entries_are_used(scenario: Scenario) -> Violation | None:
    unused = {
        f"software.{name}": (why, values)
        for name, (is_used, why, values) in _USED.items()
        if getattr(scenario.software, name) is not None and not is_used(scenario)
    }
    if not unused:
        return None
    ways: dict[str, list[Any]] = {field: [None] for field in unused}
    for _, values in unused.values():
        ways |= values
    message = "; ".join(f"{field} is set, but {why}" for field, (why, _) in unused.items())
    return Violation(message, ways, tuple(unused))


@_rule("E381", "a fused cross entropy stores no fp32 logits, so nothing is subtracted in place")
def _loss_keeps_fp32_logits(scenario: Scenario) -> Violation | None:
    field = "memory.in_place_cross_entropy"
    if scenario.memory.in_place_cross_entropy is None or not (
        scenario.facts.kernels.fused_cross_entropy
    ):
        return None
    message = f"{field} is set, but the software stack fuses the cross entropy"
    return Violation(message, {field: [None], "software.fused_cross_entropy": [False]}, (field,))
