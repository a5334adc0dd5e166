"""What frameworks refuse of experts, of expert parallelism and of hybrid models.

Sources: Megatron-LM's transformer_config.py (`__post_init__`), arguments.py, parallel_state.py and
core/transformer/moe. Two rules go beyond Megatron-LM: they refuse an imbalance that no rank can
have, and settings that have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from simtrain.scenario.dispatchers import DISPATCHERS, Dispatcher
from simtrain.scenario.memory_rules import sharding_ranks
from simtrain.scenario.model import EXPERTS, MAMBA
from simtrain.scenario.rule import (
    MISSING,
    Rule,
    Rules,
    against,
    any_but,
    at_least,
    default_of,
    divides,
    is_set,
    requires,
    shown,
    value_getter,
)
from simtrain.scenario.schema import Scenario

_DISPATCH, _IMBALANCE = "parallelism.expert_dispatch", "model.experts.imbalance"
EXPERT_RULES = Rules()
rule = EXPERT_RULES.rule

_SHARED = "model.experts.shared_ffn_hidden_size"


def _names(has_trait: Callable[[Dispatcher], bool]) -> tuple[str, ...]:
    return tuple(name for name, dispatcher in DISPATCHERS.items() if has_trait(dispatcher))


def _with(experts: str = "", parallelism: str = "data: 4, expert: 4", more: str = "") -> str:
    """Return a scenario with experts, with further fields of these sections and further lines."""
    usual = {"num": "8", "top_k": "2", "ffn_hidden_size": "4096"}
    usual |= dict(each.split(": ") for each in experts.split(", ") if each)
    sizes = ", ".join(f"{name}: {value}" for name, value in usual.items())
    model = f"model: {{biases: false, experts: {{{sizes}}}}}"
    return "\n".join(filter(None, [model, f"parallelism: {{{parallelism}}}", more]))


def _has(s: Scenario) -> bool:
    return s.model.experts is not None


EXPERT_RULES += [
    divides(
        "E471",
        "parallelism.expert",
        "model.experts.num",
        number_first=False,
        why="every expert-parallel rank holds the same whole number of experts",
        example=_with("num: 6"),
    ),
    divides(
        "E473",
        "parallelism.expert_tensor",
        "model.experts.ffn_hidden_size",
        why="the ranks of an expert shard its weights by columns",
        example=_with(
            "ffn_hidden_size: 4097", "tensor: 2, sequence_parallel: true, data: 4, expert: 4"
        ),
    ),
    divides(
        "E474",
        "parallelism.tensor",
        _SHARED,
        why="tensor parallelism shards the weights of the shared expert by columns",
        example=_with(
            "shared_ffn_hidden_size: 4097", "tensor: 2, sequence_parallel: true, data: 4, expert: 4"
        ),
    ),
    requires(
        "E470",
        ("parallelism.expert", "parallelism.expert_tensor", _DISPATCH),
        needs={"model.experts": is_set},
        why="expert parallelism shards only the weights of experts",
        example="parallelism: {expert: 2}",
    ),
    requires(
        "E480",
        "parallelism.tensor",
        needs={"parallelism.sequence_parallel": True},
        where=_has,
        why="with experts, each tensor-parallel rank routes its own tokens, which sequence "
        "parallelism assigns (arguments.py)",
        example=_with(parallelism="data: 4, expert: 4, tensor: 2"),
        first=("parallelism.sequence_parallel",),
    ),
    requires(
        "E492",
        "model.experts.router_score",
        needs={"model.experts.router_bias": False},
        off=any_but("softmax"),
        why="Megatron-LM adds a bias only to sigmoid scores",
        example=_with("router_bias: true", "data: 4"),
    ),
    requires(
        "E481",
        "model.biases",
        needs={"model.experts": None},
        off=False,
        why="biases of experts are not simulated",
        example="model: {experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}}\n"
        "parallelism: {data: 4, expert: 4}",
    ),
    requires(
        "E482",
        _DISPATCH,
        needs={"model.experts.capacity_factor": None},
        off=_names(lambda dispatcher: dispatcher.has_capacity),
        why="Megatron-LM drops and pads tokens only with the all-to-all dispatcher "
        "(transformer_config.py)",
        example=_with("capacity_factor: 1.0", "data: 4, expert: 4, expert_dispatch: all_gather"),
    ),
    requires(
        "E483",
        _IMBALANCE,
        needs={"model.experts.capacity_factor": None},
        why="a capacity factor pads every expert to the same load",
        example=_with("capacity_factor: 1.0, imbalance: 2.0"),
    ),
    requires(
        "E485",
        "model.experts.router_dtype",
        needs={"precision.compute": any_but("fp16", "fp32")},
        off=any_but("bf16"),
        why="the router computes in the dtype of the model or in fp32",
        example=_with(more="precision: {compute: fp16}"),
    ),
    requires(
        "E488",
        "model.experts.shared_gate",
        needs={_SHARED: at_least(1)},
        why="the gate scales the output of the shared expert",
        example=_with("shared_gate: true"),
    ),
    requires(
        "E489",
        "overlap.shared_expert",
        needs={_SHARED: at_least(1), _DISPATCH: _names(lambda d: d.overlaps_compute)},
        why="the shared expert overlaps with the all-to-alls of the routed experts "
        "(transformer_config.py)",
        example=_with(more="overlap: {shared_expert: true}"),
    ),
    requires(
        "E494",
        "precision.fp8_dispatch",
        needs={
            "model.experts": is_set,
            _DISPATCH: _names(lambda dispatcher: dispatcher.carries_fp8),
            "precision.fp8_recipe": ("blockwise", "mxfp8"),
            "precision.compute": "fp8",
        },
        why="scales of blocks travel with their tokens, which only kernels that move rows can do",
        example="model: {biases: false, hidden_dropout: 0, attention_dropout: 0, experts: {num: 8, "
        "top_k: 2, ffn_hidden_size: 4096}}\n"
        "parallelism: {data: 4, expert: 4, expert_dispatch: deepep}\n"
        "precision: {fp8_dispatch: true}",
    ),
]


@rule("E475", "the router sends a token to top_k different experts", _with("top_k: 9"))
def _enough_experts(s: Scenario) -> str | None:
    if (each := s.model.experts) is None or each.top_k <= each.num:
        return None
    return f"model.experts.top_k is {each.top_k}, more than model.experts.num ({each.num})"


@rule(
    "E472",
    "the ranks of a stage hold a whole number of copies of all experts (parallel_state.py)",
    _with(parallelism="data: 4, expert: 8"),
)
def _stage_split_by_experts(s: Scenario) -> str | None:
    split, ranks = s.parallelism, s.parallelism.mesh().size("tp", "cp", "dp")
    group = split.expert * split.ranks_of_expert
    if not _has(s) or ranks % group == 0:
        return None
    return (
        f"parallelism.expert x expert_tensor is {split.expert} x {split.ranks_of_expert} = "
        f"{group}, "
        f"which does not divide the {ranks} ranks of a stage (tensor x context x data)"
    )


@rule(
    "E493",
    "a token goes to equally many experts of each of its groups, which have equally many experts",
    _with("router_groups: 3, router_group_top_k: 1", "data: 4"),
)
def _groups_have_the_chosen_experts(s: Scenario) -> str | None:
    if (each := s.model.experts) is None:
        return None
    groups, chosen, num, top_k = each.router_groups, each.router_group_top_k, each.num, each.top_k
    if groups is chosen is None:
        return None
    is_even = groups and chosen and chosen <= groups and num % groups == top_k % chosen == 0
    if is_even and top_k // chosen <= num // groups:  # type: ignore[operator]
        return None
    return (
        f"model.experts.router_groups is {shown(groups)} and model.experts.router_group_top_k is "
        f"{shown(chosen)}, but a token goes to {top_k} of {num} experts"
    )


@rule(
    "E476",
    "at least one layer must have experts; otherwise the section has no effect",
    _with("first_dense_layers: 48"),
)
def _some_layer_has_experts(s: Scenario) -> str | None:
    each, layers = s.model.experts, s.model.num_layers
    if each is None or any(map(s.model.layer_has_experts, range(layers))):
        return None
    return (
        f"no layer has experts: model.experts.first_dense_layers is {each.first_dense_layers} of "
        f"{layers} layers, and of the others only those with a number divisible by "
        f"{each.layer_frequency} have experts"
    )


@rule(
    "E477",
    "model.ffn_hidden_size is the size of a dense MLP; the size of an expert is "
    "model.experts.ffn_hidden_size",
    _with(more="").replace("}}", "}, ffn_hidden_size: 8192}"),
)
def _dense_size_is_read(s: Scenario) -> str | None:
    if s.model.has_dense_layers or "ffn_hidden_size" not in s.model.model_fields_set:
        return None
    why = "no layer of model.layer_pattern is an MLP (-)" if s.model.layer_pattern else ""
    why = why or "every layer has experts instead of a dense MLP"
    return f"model.ffn_hidden_size is {s.model.ffn_hidden_size}, but {why}"


@rule(
    "E478",
    "in this order of ranks, Megatron-LM needs as many replicas of the experts as of the rest of "
    "the model (parallel_state.py)",
    _with(parallelism="data: 4, expert: 4, pipeline: 2", more="placement: {order: tp-cp-ep-pp-dp}"),
)
def _replicas_before_stages(s: Scenario) -> str | None:
    mesh = s.parallelism.mesh()
    each, order = s.expert_mesh(mesh), s.placement.order
    if each is None or each.dp == mesh.dp or mesh.pp == 1 or order.endswith("pp"):
        return None
    if _stage_split_by_experts(s):
        return None
    return (
        f"placement.order is {order}, but experts have {each.dp} replicas and the rest of the "
        f"model {mesh.dp}"
    )


@rule(
    "E484",
    "the most loaded of n expert-parallel ranks has at most all tokens, which is n times the mean",
    _with("imbalance: 4.5"),
)
def _most_imbalance(s: Scenario) -> str | None:
    if (each := s.model.experts) is None or each.imbalance <= s.parallelism.expert:
        return None
    return (
        f"{_IMBALANCE} is {each.imbalance}, more than parallelism.expert ({s.parallelism.expert})"
    )


@rule(
    "E486",
    "the ranks that shard one copy of the other states hold whole copies of the experts "
    "(torchtitan's efsdp is fsdp x tp / (ep x etp))",
    _with(more="memory: {zero_stage: 1, shard_over: 2}"),
)
def _shards_hold_whole_experts(s: Scenario) -> str | None:
    split = s.parallelism
    if not _has(s) or not s.memory.shard_over:
        return None
    if sharding_ranks(s) * split.tensor % (split.expert * split.ranks_of_expert) == 0:
        return None
    return (
        f"memory.shard_over is {s.memory.shard_over} replicas, which do not hold a whole number of "
        f"copies of the experts (parallelism.expert is {split.expert})"
    )


@rule(
    "E496",
    "its kernels exchange tokens between ranks (Megatron-LM: the flex dispatcher needs TP x EP > "
    "1)",
    _with(parallelism="data: 4, expert_dispatch: deepep"),
)
def _dispatcher_has_ranks(s: Scenario) -> str | None:
    split = s.parallelism
    if not _has(s) or split.expert * split.ranks_of_expert > 1:
        return None
    if not DISPATCHERS[s.expert_dispatch].needs_entry:
        return None
    return (
        f"{_DISPATCH} is {s.expert_dispatch} while one rank holds all experts (parallelism.expert)"
    )


def dispatcher_rule(entries: Collection[str]) -> Rule:
    """Return the rule that the cluster's profile has an entry for the dispatcher, if it needs "
    "one."""
    of_cluster = Rules()

    @of_cluster.rule(
        "E399",
        "the time of an exchange follows from the bandwidths that the dispatcher's kernels reach",
        _with(parallelism="data: 4, expert: 4, expert_dispatch: deepep", more="cluster: v100_p3"),
    )
    def has_entry(s: Scenario) -> str | None:
        name = s.expert_dispatch
        if not _has(s) or name in entries or not DISPATCHERS[name].needs_entry:
            return None
        return (
            f"{_DISPATCH} is {name}, but the profile of {s.cluster} has no entry dispatchers.{name}"
        )

    return of_cluster[0]


# Rules of hybrid models, whose layers have a pattern.
#
# Sources: Megatron-Core's core/models/hybrid/hybrid_layer_allocation.py (until 2025
# core/ssm/mamba_hybrid_layer_allocation.py) and core/ssm/mamba_mixer.py.

_GROUPS = "model.mamba.num_groups"

EXPERT_RULES += [
    against(
        "E426",
        lambda scenario: scenario.model.layer_pattern and not scenario.facts.hybrid_models,
        "model.layer_pattern is set while software.stack is {scenario.software.stack}",
        why="of the simulated frameworks, only Megatron-Core has layers of one kind each "
        "(HybridStack)",
        example="model: {num_layers: 2, layer_pattern: M-}",
    )
]


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
