"""Rules of hybrid models, whose layers have a pattern.

Sources: Megatron-Core's core/models/hybrid/hybrid_layer_allocation.py (until 2025
core/ssm/mamba_hybrid_layer_allocation.py) and core/ssm/mamba_mixer.py.
"""

from __future__ import annotations

from simtrain.scenario.model import EXPERTS, MAMBA
from simtrain.scenario.rule import MISSING, Rules, against, default_of, shown, value_getter
from simtrain.scenario.schema import Scenario

_HEADS, _GROUPS = "model.mamba.num_heads", "model.mamba.num_groups"

HYBRID_RULES = Rules()
HYBRID_RULES += [
    against(
        "E426",
        lambda scenario: scenario.model.layer_pattern and not scenario.facts.hybrid_models,
        "model.layer_pattern is set while software.stack is {scenario.software.stack}",
        why="of the simulated frameworks, only Megatron-Core has layers of one kind each "
        "(HybridStack)",
        example="model: {num_layers: 2, layer_pattern: M-}",
    ),
]
rule = HYBRID_RULES.rule


@rule(
    "E422",
    "the pattern has one letter for each layer",
    "model: {num_layers: 3, layer_pattern: M-}\nsoftware: megatron_core",
)
def _letter_per_layer(scenario: Scenario) -> str | None:
    model = scenario.model
    if model.layer_pattern is None or len(model.layer_pattern) == model.num_layers:
        return None
    return (
        f"model.layer_pattern has {len(model.layer_pattern)} letters, but model.num_layers is "
        f"{model.num_layers}"
    )


@rule(
    "E423",
    "tensor parallelism gives each rank whole heads of Mamba-2 (mamba_mixer.py)",
    "model: {num_layers: 2, layer_pattern: M-, mamba: {num_heads: 20, num_groups: 4}}\n"
    "parallelism: {tensor: 8}\n"
    "software: megatron_core",
)
def _heads_split_by_tensor(scenario: Scenario) -> str | None:
    heads, tensor = scenario.model.num_mamba_heads, scenario.parallelism.tensor
    if heads % tensor == 0:
        return None
    return f"Mamba-2 layers have {heads} heads, which {tensor} tensor-parallel ranks cannot share"


@rule(
    "E424",
    "each tensor-parallel rank has whole groups of Mamba-2 heads (mamba_mixer.py)",
    "model: {num_layers: 2, layer_pattern: M-, mamba: {num_groups: 2}}\n"
    "parallelism: {tensor: 4}\n"
    "software: megatron_core",
)
def _groups_split_by_tensor(scenario: Scenario) -> str | None:
    mamba, tensor = scenario.model.mamba, scenario.parallelism.tensor
    if mamba is None or mamba.num_groups % tensor == 0 or _heads_split_by_tensor(scenario):
        return None
    return f"{_GROUPS} is {mamba.num_groups}, which parallelism.tensor ({tensor}) does not divide"


@rule(
    "E425",
    "every group has the same number of Mamba-2 heads, and without num_heads the heads have "
    "2 x hidden_size channels together (mamba_mixer.py)",
    "model: {num_layers: 2, layer_pattern: M-, mamba: {num_heads: 100}}\nsoftware: megatron_core",
)
def _heads_split_by_groups(scenario: Scenario) -> str | None:
    model, mamba = scenario.model, scenario.model.mamba
    if mamba is None:
        return None
    if mamba.num_heads is None and 2 * model.hidden_size % mamba.head_dim:
        return (
            f"model.mamba.head_dim is {mamba.head_dim}, which does not divide 2 x "
            f"model.hidden_size ({2 * model.hidden_size})"
        )
    heads, groups = model.num_mamba_heads, mamba.num_groups
    if heads % groups == 0:
        return None
    return f"Mamba-2 layers have {heads} heads in {groups} groups"


@rule(
    "E427",
    "the pattern says what each layer is; token prediction after a hybrid model and its adapters "
    "are not simulated",
    "model: {num_layers: 2, layer_pattern: M-, parallel_attention_mlp: one_norm}\n"
    "software: megatron_core",
)
def _pattern_alone(scenario: Scenario) -> str | None:
    model = scenario.model
    if model.layer_pattern is None:
        return None
    fields = ["full_attention_every", "parallel_attention_mlp", "mtp_num_layers", "lora"]
    fields += ["experts.first_dense_layers", "experts.layer_frequency"]
    read = {f"model.{field}": value_getter(f"model.{field}")(scenario) for field in fields}
    named = [
        f"{field} is {shown(value)}"
        for field, value in read.items()
        if value is not MISSING and value != default_of(field)
    ]
    return f"{', '.join(named)} together with model.layer_pattern" if named else None


@rule(
    "E428",
    "M layers have the sizes of model.mamba and E layers those of model.experts; - layers have "
    "model.ffn_hidden_size",
    "model: {mamba: {state_dim: 128}}",
)
def _sections_fit(scenario: Scenario) -> str | None:
    model, pattern = scenario.model, scenario.model.layer_pattern or ""
    if model.mamba is not None and MAMBA not in pattern:
        return "model.mamba is set, but no layer of model.layer_pattern is M"
    if model.experts is None and EXPERTS in pattern:
        return "model.layer_pattern has layers with experts (E), but model.experts is not set"
    return None


@rule(
    "E429",
    "context-parallel ranks exchange tokens for whole heads of Mamba-2, and each has one group or "
    "several (mamba_context_parallel.py)",
    "model: {num_layers: 2, layer_pattern: M-, mamba: {num_heads: 12, num_groups: 4}}\n"
    "parallelism: {context: 8}\n"
    "software: megatron_core",
)
def _heads_split_by_context(scenario: Scenario) -> str | None:
    model, split = scenario.model, scenario.parallelism
    if model.mamba is None or _heads_split_by_tensor(scenario) or _groups_split_by_tensor(scenario):
        return None
    heads, groups = model.num_mamba_heads // split.tensor, model.mamba.num_groups // split.tensor
    ranks = split.context
    if heads % ranks == 0 and (groups % ranks == 0 or ranks % groups == 0):
        return None
    return (
        f"parallelism.context is {split.context}, but a tensor-parallel rank has {heads} heads of "
        f"Mamba-2 in {groups} groups"
    )
