"""Rules of selective recompute and of its modules.

Source: Megatron-LM's transformer_config.py (`__post_init__`). Megatron-LM accepts modules that no
layer has and recomputes nothing; simtrain refuses them, because they have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simtrain.scenario.recompute_section import (
    MODULES,
    Module,
)
from simtrain.scenario.rule import Rules, against, any_but, excludes, requires
from simtrain.scenario.schema import Scenario

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


def _without(scenario: Scenario, modules: set[Module]) -> dict[str, list[object]]:
    """Return the values that remove these modules from recompute."""
    others = [module for module in scenario.recompute.modules if module not in modules]
    if not others:
        return {"recompute": ["none"]}
    return {"recompute.modules": [others]}


RECOMPUTE_RULES = Rules()
RECOMPUTE_RULES += [
    requires(
        "E318",
        ("recompute.method", "recompute.num_layers", "recompute.distribute"),
        needs={"recompute.strategy": "full"},
        why="only full recompute reads method, num_layers and distribute",
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
rule = RECOMPUTE_RULES.rule


def _recomputes(scenario: Scenario, modules: set[Module]) -> set[Module]:
    """Return the subset of the modules that the scenario recomputes."""
    policy = scenario.recompute
    return modules & {*policy.modules} if policy.strategy == "selective" else set()


@rule(
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
