"""Rules of hybrid models, whose layers have a pattern.

Sources: Megatron-Core's core/models/hybrid/hybrid_layer_allocation.py (until 2025
core/ssm/mamba_hybrid_layer_allocation.py) and core/ssm/mamba_mixer.py.
"""

from __future__ import annotations

from simtrain.scenario.allowed_values import shown
from simtrain.scenario.mamba import EXPERTS, MAMBA, MLP
from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.schema import Scenario
from simtrain.scenario.software import stacks_with
from simtrain.scenario.violation import (
    LEFT_OUT,
    Rule,
    Violation,
    registering,
    rule_against,
)

_HEADS, _GROUPS = "model.mamba.num_heads", "model.mamba.num_groups"

HYBRID_RULES: list[Rule] = [
    rule_against(
        "E426",
        "of the simulated frameworks, only Megatron-Core has layers of one kind each (HybridStack)",
        {
            "software.stack": lambda scenario: stacks_with("hybrid_models", True),
            "model.layer_pattern": [None],
        },
        lambda scenario: scenario.model.layer_pattern and not scenario.facts.hybrid_models,
        "model.layer_pattern is set while software.stack is {scenario.software.stack}",
        what="The framework has no hybrid models.",
        fix="Set software to megatron_core.",
        example="model: {num_layers: 2, layer_pattern: M-}",
    ),
]
_rule = registering(HYBRID_RULES)


@_rule(
    "E422",
    "the pattern has one letter for each layer",
    what="layer_pattern has another length than num_layers.",
    fix="Set model.num_layers to the number of letters of model.layer_pattern.",
    example="model: {num_layers: 3, layer_pattern: M-}\nsoftware: megatron_core",
)
def _letter_per_layer(scenario: Scenario) -> Violation | None:
    model = scenario.model
    if model.layer_pattern is None or len(model.layer_pattern) == model.num_layers:
        return None
    return Violation(
        f"model.layer_pattern has {len(model.layer_pattern)} letters, but model.num_layers is "
        f"{model.num_layers}",
        {"model.num_layers": [len(model.layer_pattern)]},
        ("model.layer_pattern", "model.num_layers"),
    )


@_rule(
    "E423",
    "tensor parallelism gives each rank whole heads of Mamba-2 (mamba_mixer.py)",
    what="parallelism.tensor does not divide the heads of Mamba-2 layers.",
    fix="Set model.mamba.num_heads to a multiple of parallelism.tensor.",
    example=(
        "model: {num_layers: 2, layer_pattern: M-, mamba: {num_heads: 20, num_groups: 4}}\n"
        "parallelism: {tensor: 8}\n"
        "software: megatron_core"
    ),
)
def _heads_split_by_tensor(scenario: Scenario) -> Violation | None:
    heads, tensor = scenario.model.num_mamba_heads, scenario.parallelism.tensor
    if heads % tensor == 0:
        return None
    return Violation(
        f"Mamba-2 layers have {heads} heads, which {tensor} tensor-parallel ranks cannot share",
        {"parallelism.tensor": near_divisors(tensor, heads), _HEADS: near_multiples(heads, tensor)},
    )


@_rule(
    "E424",
    "each tensor-parallel rank has whole groups of Mamba-2 heads (mamba_mixer.py)",
    what="parallelism.tensor does not divide the groups of Mamba-2 heads.",
    fix="Set model.mamba.num_groups to a multiple of parallelism.tensor.",
    example=(
        "model: {num_layers: 2, layer_pattern: M-, mamba: {num_groups: 2}}\n"
        "parallelism: {tensor: 4}\n"
        "software: megatron_core"
    ),
)
def _groups_split_by_tensor(scenario: Scenario) -> Violation | None:
    mamba, tensor = scenario.model.mamba, scenario.parallelism.tensor
    if mamba is None or mamba.num_groups % tensor == 0 or _heads_split_by_tensor(scenario):
        return None
    return Violation(
        f"{_GROUPS} is {mamba.num_groups}, which parallelism.tensor ({tensor}) does not divide",
        {
            "parallelism.tensor": near_divisors(tensor, mamba.num_groups),
            _GROUPS: near_multiples(mamba.num_groups, tensor),
        },
        (_GROUPS, "parallelism.tensor"),
    )


@_rule(
    "E425",
    "every group has the same number of Mamba-2 heads, and without num_heads the heads have "
    "2 x hidden_size channels together (mamba_mixer.py)",
    what="Mamba-2 layers do not have a whole number of heads in each group.",
    fix="Set model.mamba.num_heads to a multiple of model.mamba.num_groups.",
    example=(
        "model: {num_layers: 2, layer_pattern: M-, mamba: {num_heads: 100}}\n"
        "software: megatron_core"
    ),
)
def _heads_split_by_groups(scenario: Scenario) -> Violation | None:
    model, mamba = scenario.model, scenario.model.mamba
    if mamba is None:
        return None
    if mamba.num_heads is None and 2 * model.hidden_size % mamba.head_dim:
        return Violation(
            f"model.mamba.head_dim is {mamba.head_dim}, which does not divide 2 x "
            f"model.hidden_size ({2 * model.hidden_size})",
            {"model.mamba.head_dim": near_divisors(mamba.head_dim, 2 * model.hidden_size)},
        )
    heads, groups = model.num_mamba_heads, mamba.num_groups
    if heads % groups == 0:
        return None
    return Violation(
        f"Mamba-2 layers have {heads} heads in {groups} groups",
        {_GROUPS: near_divisors(groups, heads), _HEADS: near_multiples(heads, groups)},
    )


@_rule(
    "E427",
    "the pattern says what each layer is; token prediction after a hybrid model and its adapters "
    "are not simulated",
    what="A field contradicts layer_pattern.",
    fix="Remove the field in the error message, or model.layer_pattern.",
    example=(
        "model: {num_layers: 2, layer_pattern: M-, parallel_attention_mlp: one_norm}\n"
        "software: megatron_core"
    ),
)
def _pattern_alone(scenario: Scenario) -> Violation | None:
    model = scenario.model
    if model.layer_pattern is None:
        return None
    defaults: dict[str, object] = {
        "model.full_attention_every": None,
        "model.parallel_attention_mlp": "none",
        "model.mtp_num_layers": 0,
        "model.lora": None,
    }
    values: list[object] = [model.full_attention_every, model.parallel_attention_mlp]
    values += [model.mtp_num_layers, model.lora]
    if model.experts is not None:
        defaults["model.experts.first_dense_layers"] = 0
        defaults["model.experts.layer_frequency"] = 1
        values += [model.experts.first_dense_layers, model.experts.layer_frequency]
    wrong = {
        field: (value, default)
        for value, (field, default) in zip(values, defaults.items(), strict=True)
        if value != default
    }
    if not wrong:
        return None
    named = ", ".join(f"{field} is {shown(value)}" for field, (value, _) in wrong.items())
    return Violation(
        f"{named} together with model.layer_pattern",
        {field: [default] for field, (_, default) in wrong.items()},
        (*wrong, "model.layer_pattern"),
    )


@_rule(
    "E428",
    "M layers have the sizes of model.mamba and E layers those of model.experts; - layers have "
    "model.ffn_hidden_size",
    what="layer_pattern and the sections model.mamba and model.experts do not fit.",
    fix="Add the section for the letters of the pattern, or remove the one without letters.",
    example="model: {mamba: {state_dim: 128}}",
)
def _sections_fit(scenario: Scenario) -> Violation | None:
    model, pattern = scenario.model, scenario.model.layer_pattern or ""
    if model.mamba is not None and MAMBA not in pattern:
        message = "model.mamba is set, but no layer of model.layer_pattern is M"
        return Violation(message, {"model.mamba": [LEFT_OUT]}, ("model.mamba",))
    if model.experts is None and EXPERTS in pattern:
        message = "model.layer_pattern has layers with experts (E), but model.experts is not set"
        without = pattern.replace(EXPERTS, MLP)
        return Violation(message, {"model.layer_pattern": [without]}, ("model.layer_pattern",))
    return None


@_rule(
    "E429",
    "context-parallel ranks exchange tokens for whole heads of Mamba-2, and each has one group or "
    "several (mamba_context_parallel.py)",
    what="Context-parallel ranks cannot share the heads and groups of Mamba-2 layers.",
    fix="Set parallelism.context to a divisor of the heads and groups of a tensor-parallel rank.",
    example=(
        "model: {num_layers: 2, layer_pattern: M-, mamba: {num_heads: 12, num_groups: 4}}\n"
        "parallelism: {context: 8}\n"
        "software: megatron_core"
    ),
)
def _heads_split_by_context(scenario: Scenario) -> Violation | None:
    model, split = scenario.model, scenario.parallelism
    if model.mamba is None or _heads_split_by_tensor(scenario) or _groups_split_by_tensor(scenario):
        return None
    heads, groups = model.num_mamba_heads // split.tensor, model.mamba.num_groups // split.tensor

    def is_shared(ranks: int) -> bool:
        """Whether ranks can share the heads and the groups of a tensor-parallel rank."""
        return heads % ranks == 0 and (groups % ranks == 0 or ranks % groups == 0)

    if is_shared(split.context):
        return None
    shared = [ranks for ranks in near_divisors(split.context, heads) if is_shared(ranks)]
    return Violation(
        f"parallelism.context is {split.context}, but a tensor-parallel rank has {heads} heads of "
        f"Mamba-2 in {groups} groups",
        {"parallelism.context": shared},
    )
