"""Rules of experts and of expert parallelism: what Megatron-LM refuses, and legal alternatives.

Sources: Megatron-LM's transformer_config.py (`__post_init__`), arguments.py, parallel_state.py and
core/transformer/moe. Two rules go beyond Megatron-LM: they refuse an imbalance that no rank can
have, and settings that have no effect. The reason of a rule says if a legal setting is not
simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import gcd

from simtrain.base.strict_yaml import as_scalar
from simtrain.scenario.allowed_values import SET, any_but, at_least
from simtrain.scenario.at_most import AtMost
from simtrain.scenario.data_parallel_rules import sharding_ranks
from simtrain.scenario.dispatchers import DISPATCHERS, Dispatcher
from simtrain.scenario.divisibility import Divides
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.experts import Experts
from simtrain.scenario.nearest import divisors, near_divisors, near_multiples
from simtrain.scenario.requirement import Given, Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import (
    LEFT_OUT,
    Rule,
    Violation,
    WrittenRule,
    registering,
    rule_against,
)


def _example(experts: str = "", parallelism: str = "data: 4, expert: 4", more: str = "") -> str:
    """Return a scenario with experts, with further fields of these sections and further lines."""
    sizes = ", ".join(filter(None, ["num: 8, top_k: 2, ffn_hidden_size: 4096", experts]))
    model = f"model: {{biases: false, experts: {{{sizes}}}}}"
    return "\n".join(filter(None, [model, f"parallelism: {{{parallelism}}}", more]))


def _if_experts(is_broken: Callable[[Scenario, Experts], object]) -> Callable[[Scenario], object]:
    """Restrict a condition to models with experts."""
    return lambda scenario: (
        scenario.model.experts is not None and is_broken(scenario, scenario.model.experts)
    )


def _dispatcher(scenario: Scenario) -> Dispatcher:
    return DISPATCHERS[scenario.expert_dispatch]


def _names(has_trait: Callable[[Dispatcher], bool]) -> tuple[str, ...]:
    """Return the names of the dispatchers with a trait."""
    return tuple(name for name, dispatcher in DISPATCHERS.items() if has_trait(dispatcher))


_WITH_EXPERTS = Given("experts", lambda scenario: scenario.model.experts is not None)


def _chosen_experts(scenario: Scenario) -> Iterable[int]:
    return [scenario.model.experts.top_k] if scenario.model.experts else []


EXPERT_RULES: list[Rule] = [
    Divides(
        "E471",
        "parallelism.expert",
        "model.experts.num",
        number_first=False,
        why="every expert-parallel rank holds the same whole number of experts",
        example=(
            "model: {biases: false, experts: {num: 6, top_k: 2, ffn_hidden_size: 4096}}\n"
            "parallelism: {data: 4, expert: 4}"
        ),
    ),
    Divides(
        "E473",
        "parallelism.expert_tensor",
        "model.experts.ffn_hidden_size",
        why="the ranks of an expert shard its weights by columns",
        example=(
            "model: {biases: false, experts: {num: 8, top_k: 2, ffn_hidden_size: 4097}}\n"
            "parallelism: {tensor: 2, sequence_parallel: true, data: 4, expert: 4}"
        ),
    ),
    Divides(
        "E474",
        "parallelism.tensor",
        "model.experts.shared_ffn_hidden_size",
        why="tensor parallelism shards the weights of the shared expert by columns",
        example=_example(
            experts="shared_ffn_hidden_size: 4097",
            parallelism="tensor: 2, sequence_parallel: true, data: 4, expert: 4",
        ),
    ),
    AtMost(
        "E475",
        "model.experts.top_k",
        "model.experts.num",
        lambda scenario: experts.num if (experts := scenario.model.experts) else None,
        near={"model.experts.num": _chosen_experts},
        why="the router sends a token to top_k different experts",
        example=(
            "model: {biases: false, experts: {num: 8, ffn_hidden_size: 4096, top_k: 9}}\n"
            "parallelism: {data: 4, expert: 4}"
        ),
    ),
]
_rule = registering(EXPERT_RULES)


@_rule(
    "E472",
    "the ranks of a stage hold a whole number of copies of all experts (parallel_state.py)",
    what="The ranks of a stage do not hold a whole number of copies of all experts.",
    fix="Set parallelism.expert x expert_tensor to a divisor of tensor x context x data.",
    example=_example(parallelism="data: 4, expert: 8"),
)
def _stage_split_by_experts(scenario: Scenario) -> Violation | None:
    split, ranks = scenario.parallelism, scenario.parallelism.mesh().size("tp", "cp", "dp")
    per_expert_group = split.expert * split.ranks_of_expert
    if scenario.model.experts is None or ranks % per_expert_group == 0:
        return None
    per_replica = ranks // split.data
    needed = per_expert_group // gcd(per_expert_group, per_replica)
    tensors = divisors(gcd(ranks // gcd(ranks, split.expert), split.tensor))
    return Violation(
        f"parallelism.expert x expert_tensor is {split.expert} x {split.ranks_of_expert} = "
        f"{per_expert_group}, "
        f"which does not divide the {ranks} ranks of a stage (tensor x context x data)",
        {
            "parallelism.expert": near_divisors(
                split.expert, ranks // gcd(ranks, split.ranks_of_expert)
            ),
            "parallelism.data": near_multiples(split.data, needed),
            "parallelism.expert_tensor": reversed(tensors),
        },
    )


@_rule(
    "E493",
    "a token goes to equally many experts of each of its groups, which have equally many experts",
    what="The groups of experts do not fit the numbers of experts.",
    fix=(
        "Set router_groups to a divisor of the experts, and router_group_top_k to a divisor"
        " of top_k; or remove both."
    ),
    example=(
        "model: {biases: false, experts: {num: 8, top_k: 2, ffn_hidden_size: 4096, "
        "router_groups: 3, router_group_top_k: 1}}"
    ),
)
def _groups_have_the_chosen_experts(scenario: Scenario) -> Violation | None:
    experts = scenario.model.experts
    if experts is None:
        return None
    groups, chosen = experts.router_groups, experts.router_group_top_k
    num, top_k = experts.num, experts.top_k
    if groups is None and chosen is None:
        return None
    if (
        groups
        and chosen
        and chosen <= groups
        and num % groups == top_k % chosen == 0
        and top_k // chosen <= num // groups
    ):
        return None
    fields = {"model.experts.router_groups": groups, "model.experts.router_group_top_k": chosen}
    written = " and ".join(f"{field} is {as_scalar(value)}" for field, value in fields.items())
    values: dict[str, Iterable[object]] = {
        "model.experts.router_groups": near_divisors(groups, num) if groups else [],
        "model.experts.router_group_top_k": near_divisors(chosen, top_k) if chosen else [1],
    }
    if not groups or not chosen:
        values |= {field: [None] for field, value in fields.items() if value}
    return Violation(f"{written}, but a token goes to {top_k} of {num} experts", values)


@_rule(
    "E476",
    "at least one layer must have experts; otherwise the section has no effect",
    what="No layer of the model has experts.",
    fix=("Change model.experts.first_dense_layers or layer_frequency, or remove model.experts."),
    example=_example(experts="first_dense_layers: 48"),
)
def _some_layer_has_experts(scenario: Scenario) -> Violation | None:
    experts, layers = scenario.model.experts, scenario.model.num_layers
    if experts is None or any(map(scenario.model.layer_has_experts, range(layers))):
        return None
    first, step = experts.first_dense_layers, experts.layer_frequency
    return Violation(
        f"no layer has experts: the first {first} of {layers} layers are dense, and of the others "
        f"only layers with a number divisible by {step} have experts",
        {
            "model.experts.first_dense_layers": [(layers - 1) // step * step, 0],
            "model.experts.layer_frequency": [1],
        },
    )


@_rule(
    "E477",
    "model.ffn_hidden_size is the size of a dense MLP; the size of an expert is "
    "model.experts.ffn_hidden_size",
    what="The size of a dense MLP is set, but no layer has one.",
    fix="Remove model.ffn_hidden_size.",
    example=(
        "model: {biases: false, experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}, "
        "ffn_hidden_size: 8192}\n"
        "parallelism: {data: 4, expert: 4}"
    ),
)
def _dense_size_is_read(scenario: Scenario) -> Violation | None:
    model = scenario.model
    if model.has_dense_layers or "ffn_hidden_size" not in model.model_fields_set:
        return None
    field, size = "model.ffn_hidden_size", model.ffn_hidden_size
    if model.layer_pattern is not None:
        message = f"{field} is {size}, but no layer of model.layer_pattern is an MLP (-)"
        return Violation(message, {field: [LEFT_OUT]})
    return Violation(
        f"{field} is {size}, but every layer has experts instead of a dense MLP",
        {field: [LEFT_OUT], "model.experts.first_dense_layers": [1]},
    )


@_rule(
    "E478",
    "in this order of ranks, Megatron-LM needs as many replicas of the experts as of the rest of "
    "the model (parallel_state.py)",
    what=("The order of ranks needs as many replicas of the experts as of the rest of the model."),
    fix="Set placement.order to tp-cp-ep-dp-pp, or parallelism.expert to 1.",
    example=_example(
        parallelism="data: 4, expert: 4, pipeline: 2", more="placement: {order: tp-cp-ep-pp-dp}"
    ),
)
def _replicas_before_stages(scenario: Scenario) -> Violation | None:
    split, mesh = scenario.parallelism, scenario.parallelism.mesh()
    experts = scenario.expert_mesh(mesh)
    if experts is None or split.pipeline == 1 or scenario.placement.order.endswith("pp"):
        return None
    if experts.dp == mesh.dp or _stage_split_by_experts(scenario):
        return None
    return Violation(
        f"placement.order is {scenario.placement.order}, but experts have {experts.dp} replicas "
        f"and the rest of the model {mesh.dp}",
        {
            "placement.order": ["tp-cp-ep-dp-pp"],
            "parallelism.expert": near_divisors(split.expert, split.expert),
        },
    )


@_rule(
    "E479",
    "resharding to a smaller group is simulated only if experts and the rest of the model have "
    "equally many replicas",
    what=(
        "memory.reshard_after_forward is a number, and experts have fewer or more replicas "
        "than the rest of the model."
    ),
    fix="Set memory.reshard_after_forward to true or false, or parallelism.expert to 1.",
    example=_example(more="memory: {zero_stage: 3, reshard_after_forward: 2}"),
)
def _one_resharding_group(scenario: Scenario) -> Violation | None:
    mesh, reshards = scenario.parallelism.mesh(), scenario.memory.reshard_after_forward
    experts = scenario.expert_mesh(mesh)
    if experts is None or isinstance(reshards, bool) or _stage_split_by_experts(scenario):
        return None
    if experts.data_group.num_ranks == mesh.data_group.num_ranks:
        return None
    return Violation(
        f"memory.reshard_after_forward is {reshards} while experts have "
        f"{experts.data_group.num_ranks} replicas and the rest of the model "
        f"{mesh.data_group.num_ranks}",
        {"memory.reshard_after_forward": [True, False], "parallelism.expert": [1]},
    )


def _splits_experts(scenario: Scenario) -> bool:
    """Whether the ranks that hold one copy of the other states hold no whole copies of experts."""
    split = scenario.parallelism
    ranks = sharding_ranks(scenario) * split.tensor
    return ranks % (split.expert * split.ranks_of_expert) != 0


EXPERT_RULES += [
    Requires(
        "E470",
        ("parallelism.expert", "parallelism.expert_tensor", "parallelism.expert_dispatch"),
        needs={"model.experts": SET},
        why="expert parallelism shards only the weights of experts",
        example="parallelism: {expert: 2}",
    ),
    Requires(
        "E480",
        "parallelism.tensor",
        needs={"parallelism.sequence_parallel": True},
        given=_WITH_EXPERTS,
        needs_first=True,
        why=(
            "with experts, each tensor-parallel rank routes its own tokens, which sequence "
            "parallelism assigns (arguments.py)"
        ),
        example=_example(parallelism="data: 4, expert: 4, tensor: 2"),
    ),
    Requires(
        "E492",
        "model.experts.router_score",
        needs={"model.experts.router_bias": False},
        off=any_but("softmax", near=("sigmoid",)),
        why="Megatron-LM adds a bias only to sigmoid scores",
        example=(
            "model: {biases: false, experts: {num: 8, top_k: 2, ffn_hidden_size: 4096, "
            "router_bias: true}}"
        ),
    ),
    Requires(
        "E481",
        "model.biases",
        needs={"model.experts": None},
        off=False,
        why="biases of experts are not simulated",
        example=(
            "model: {experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}}\n"
            "parallelism: {data: 4, expert: 4}"
        ),
    ),
    Requires(
        "E482",
        "parallelism.expert_dispatch",
        needs={"model.experts.capacity_factor": None},
        off=_names(lambda dispatcher: dispatcher.has_capacity),
        why=(
            "Megatron-LM drops and pads tokens only with the all-to-all dispatcher "
            "(transformer_config.py)"
        ),
        example=_example(
            experts="capacity_factor: 1.0",
            parallelism="data: 4, expert: 4, expert_dispatch: all_gather",
        ),
    ),
    Requires(
        "E483",
        "model.experts.imbalance",
        needs={"model.experts.capacity_factor": None},
        why="a capacity factor pads every expert to the same load",
        example=_example(experts="capacity_factor: 1.0, imbalance: 2.0"),
    ),
    AtMost(
        "E484",
        "model.experts.imbalance",
        "parallelism.expert",
        lambda scenario: float(scenario.parallelism.expert),
        near={"parallelism.expert": []},
        why=(
            "the most loaded of n expert-parallel ranks has at most all tokens, which is n times "
            "the mean"
        ),
        example=_example(experts="imbalance: 4.5"),
    ),
    Excludes(
        "E440",
        "model.experts.imbalance_seed",
        "layers have no imbalance, or a pattern",
        _if_experts(
            lambda scenario, experts: (
                experts.imbalance == 1 or scenario.model.layer_pattern is not None
            )
        ),
        reads=("model.experts.imbalance", "model.layer_pattern"),
        near={
            "model.experts.imbalance": lambda scenario: [1.2] * (scenario.parallelism.expert > 1)
        },
        why=(
            "a seed draws how far the loads of layers are above the mean, around imbalance - 1, "
            "but not for layers with a pattern"
        ),
        example=_example(experts="imbalance_seed: 1"),
    ),
    Requires(
        "E485",
        "model.experts.router_dtype",
        needs={"precision.compute": any_but("fp16", "fp32", near=("bf16",))},
        off=any_but("bf16", near=("fp32",)),
        why="the router computes in the dtype of the model or in fp32",
        example=_example(more="precision: {compute: fp16}"),
    ),
    rule_against(
        "E486",
        "the ranks that shard one copy of the other states hold whole copies of the experts "
        "(torchtitan's efsdp is fsdp x tp / (ep x etp))",
        {
            "memory.shard_over": lambda scenario: [
                *near_divisors(scenario.memory.shard_over or 2, scenario.parallelism.data, 2),
                None,
            ],
            "parallelism.expert": lambda scenario: near_divisors(
                scenario.parallelism.expert, scenario.parallelism.expert
            ),
        },
        _if_experts(lambda scenario, _: scenario.memory.shard_over and _splits_experts(scenario)),
        "memory.shard_over is {scenario.memory.shard_over} replicas, which do not hold a "
        "whole number "
        "of copies of the experts (parallelism.expert is {scenario.parallelism.expert})",
        what="The ranks that shard states do not hold a whole number of copies of the experts.",
        fix=(
            "Set memory.shard_over so that shard_over x tensor x context is a multiple of "
            "parallelism.expert x expert_tensor."
        ),
        example=_example(more="memory: {zero_stage: 1, shard_over: 2}"),
    ),
    Requires(
        "E488",
        "model.experts.shared_gate",
        needs={"model.experts.shared_ffn_hidden_size": at_least(1, near=())},
        why="the gate scales the output of the shared expert",
        example=_example(experts="shared_gate: true"),
    ),
    Requires(
        "E489",
        "overlap.shared_expert",
        needs={
            "model.experts.shared_ffn_hidden_size": at_least(1, near=()),
            "parallelism.expert_dispatch": _names(lambda other: other.overlaps_compute),
        },
        why=(
            "the shared expert overlaps with the all-to-alls of the routed experts "
            "(transformer_config.py)"
        ),
        example=_example(more="overlap: {shared_expert: true}"),
    ),
    Requires(
        "E494",
        "precision.fp8_dispatch",
        needs={
            "model.experts": SET,
            "parallelism.expert_dispatch": _names(lambda dispatcher: dispatcher.carries_fp8),
            "precision.fp8_recipe": ("blockwise", "mxfp8"),
            "precision.compute": "fp8",
        },
        why=("scales of blocks travel with their tokens, which only kernels that move rows can do"),
        example=(
            "model: {biases: false, hidden_dropout: 0, attention_dropout: 0, experts: {num: 8, "
            "top_k: 2, ffn_hidden_size: 4096}}\n"
            "parallelism: {data: 4, expert: 4, expert_dispatch: deepep}\n"
            "precision: {fp8_dispatch: true}"
        ),
    ),
    Excludes(
        "E496",
        "parallelism.expert_dispatch",
        "one rank holds all experts",
        _if_experts(
            lambda scenario, _: (
                scenario.parallelism.expert * scenario.parallelism.ranks_of_expert == 1
            )
        ),
        reads=("parallelism.expert",),
        off=_names(lambda dispatcher: not dispatcher.needs_entry),
        why=(
            "its kernels exchange tokens between ranks (Megatron-LM: the flex dispatcher needs "
            "TP x EP > 1)"
        ),
        example=_example(parallelism="data: 4, expert_dispatch: deepep"),
    ),
]


def dispatcher_rule(entries: Collection[str]) -> Rule:
    """Return the rule that the cluster's profile has what the time of the dispatch needs.

    Args:
        entries: dispatchers with an entry in the profile's section `dispatchers`.
    """

    def check(scenario: Scenario) -> Violation | None:
        """Return the violation of a dispatcher without an entry."""
        name = scenario.expert_dispatch
        if (
            scenario.model.experts is None
            or name in entries
            or not _dispatcher(scenario).needs_entry
        ):
            return None
        others = _names(lambda other: not other.needs_entry or other.name in entries)
        return Violation(
            f"parallelism.expert_dispatch is {name}, but the profile of {scenario.cluster} has no "
            f"entry dispatchers.{name}",
            {"parallelism.expert_dispatch": others, "cluster": []},
        )

    return WrittenRule(
        "E399",
        "the time of an exchange follows from the bandwidths that the dispatcher's kernels reach",
        check,
        what="The profile of the cluster has no entry for this dispatcher.",
        fix=(
            "Set parallelism.expert_dispatch to all_to_all, choose another cluster, or add the "
            "entry to the profile."
        ),
        example=_example(
            parallelism="data: 4, expert: 4, expert_dispatch: deepep",
            more="cluster: a100_sxm4_80gb",
        ),
    )
