"""Rules of experts and of expert parallelism: what Megatron-LM refuses, and legal alternatives.

Sources: Megatron-LM's transformer_config.py (`__post_init__`), arguments.py, parallel_state.py and
core/transformer/moe. Two rules go beyond Megatron-LM: they refuse an imbalance that no rank can
have, and settings that have no effect. The reason of a rule says if a legal setting is not
simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd
from operator import attrgetter

from simtrain.base.strict_yaml import as_scalar
from simtrain.scenario.data_parallel_rules import sharding_ranks
from simtrain.scenario.experts import Experts
from simtrain.scenario.nearest import divisors, near_divisors, near_multiples
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import (
    LEFT_OUT,
    Rule,
    Violation,
    not_a_multiple,
    not_divided,
    registering,
    rule_against,
    rule_for_one_of,
)

EXPERT_RULES: list[Rule] = []
_rule = registering(EXPERT_RULES)


def _if_experts(is_broken: Callable[[Scenario, Experts], object]) -> Callable[[Scenario], object]:
    """Restrict a condition to models with experts."""
    return lambda one: one.model.experts is not None and is_broken(one, one.model.experts)


def _has_experts(scenario: Scenario) -> bool:
    return scenario.model.experts is not None


@_rule("E470", "expert parallelism shards only the weights of experts")
def _expert_parallelism_needs_experts(scenario: Scenario) -> Violation | None:
    defaults = {"expert": 1, "expert_tensor": None, "expert_dispatch": "all_to_all"}
    changed = {
        f"parallelism.{name}": default
        for name, default in defaults.items()
        if getattr(scenario.parallelism, name) != default
    }
    if scenario.model.experts is not None or not changed:
        return None
    field = next(iter(changed))
    message = f"{field} is {attrgetter(field)(scenario)}, but the model has no experts"
    values = {field: [default] for field, default in changed.items()}
    return Violation(message, {**values, "model.experts": []})


@_rule("E471", "every expert-parallel rank holds the same whole number of experts")
def _experts_split_by_ranks(scenario: Scenario) -> Violation | None:
    if scenario.model.experts is None:
        return None
    return not_divided(scenario, "parallelism.expert", "model.experts.num")


@_rule(
    "E472", "the ranks of a stage hold a whole number of copies of all experts (parallel_state.py)"
)
def _stage_split_by_experts(scenario: Scenario) -> Violation | None:
    split, ranks = scenario.parallelism, scenario.parallelism.mesh().size("tp", "cp", "dp")
    own = split.expert * split.ranks_of_expert
    if scenario.model.experts is None or ranks % own == 0:
        return None
    per_replica = ranks // split.data
    needed = own // gcd(own, per_replica)
    tensors = divisors(gcd(ranks // gcd(ranks, split.expert), split.tensor))
    return Violation(
        f"parallelism.expert x expert_tensor is {split.expert} x {split.ranks_of_expert} = {own}, "
        f"which does not divide the {ranks} ranks of a stage (tensor x context x data)",
        {
            "parallelism.expert": near_divisors(
                split.expert, ranks // gcd(ranks, split.ranks_of_expert)
            ),
            "parallelism.data": near_multiples(split.data, needed),
            "parallelism.expert_tensor": reversed(tensors),
        },
    )


@_rule("E473", "the ranks of an expert shard its weights by columns")
def _expert_split_by_tensor(scenario: Scenario) -> Violation | None:
    if scenario.model.experts is None:
        return None
    return not_a_multiple(scenario, "model.experts.ffn_hidden_size", "parallelism.expert_tensor")


@_rule("E474", "tensor parallelism shards the weights of the shared expert by columns")
def _shared_split_by_tensor(scenario: Scenario) -> Violation | None:
    if scenario.model.experts is None:
        return None
    return not_a_multiple(scenario, "model.experts.shared_ffn_hidden_size")


@_rule("E475", "the router sends a token to top_k different experts")
def _top_k_within_experts(scenario: Scenario) -> Violation | None:
    experts = scenario.model.experts
    if experts is None or experts.top_k <= experts.num:
        return None
    return Violation(
        f"model.experts.top_k is {experts.top_k}, but there are {experts.num} experts",
        {"model.experts.top_k": [experts.num], "model.experts.num": [experts.top_k]},
    )


@_rule(
    "E493",
    "a token goes to equally many experts of each of its groups, which have equally many experts",
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


@_rule("E476", "at least one layer must have experts; otherwise the section has no effect")
def _some_layer_has_experts(scenario: Scenario) -> Violation | None:
    experts, layers = scenario.model.experts, scenario.model.num_layers
    if experts is None or any(map(experts.has_layer, range(layers))):
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
)
def _dense_size_is_read(scenario: Scenario) -> Violation | None:
    model = scenario.model
    if model.has_dense_layers or "ffn_hidden_size" not in model.model_fields_set:
        return None
    return Violation(
        f"model.ffn_hidden_size is {model.ffn_hidden_size}, but every layer has experts "
        "instead of a dense MLP",
        {"model.ffn_hidden_size": [LEFT_OUT], "model.experts.first_dense_layers": [1]},
    )


@_rule(
    "E478",
    "in this order of ranks, Megatron-LM needs as many replicas of the experts as of the rest of "
    "the model (parallel_state.py)",
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
    rule_against(
        "E480",
        "with experts, each tensor-parallel rank routes its own tokens, which sequence parallelism "
        "assigns (arguments.py)",
        {"parallelism.sequence_parallel": [True], "parallelism.tensor": [1]},
        _if_experts(
            lambda one, _: one.parallelism.tensor > 1 and not one.parallelism.sequence_parallel
        ),
        fields=("parallelism.tensor", "parallelism.sequence_parallel"),
    ),
    rule_for_one_of(
        "E492",
        "Megatron-LM adds a bias only to sigmoid scores",
        {"model.experts.router_score": ["sigmoid"], "model.experts.router_bias": [False]},
        _has_experts,
    ),
    rule_for_one_of(
        "E481",
        "biases of experts are not simulated",
        {"model.biases": [False], "model.experts": [None]},
    ),
    rule_for_one_of(
        "E482",
        "Megatron-LM drops and pads tokens only with the all-to-all dispatcher "
        "(transformer_config.py)",
        {"parallelism.expert_dispatch": ["all_to_all"], "model.experts.capacity_factor": [None]},
        _has_experts,
    ),
    rule_for_one_of(
        "E483",
        "a capacity factor pads every expert to the same load",
        {"model.experts.imbalance": [1.0], "model.experts.capacity_factor": [None]},
        _has_experts,
    ),
    rule_against(
        "E484",
        "the most loaded of n expert-parallel ranks has at most all tokens, which is n times the "
        "mean",
        {
            "model.experts.imbalance": lambda one: [float(one.parallelism.expert)],
            "parallelism.expert": [],
        },
        _if_experts(lambda one, experts: experts.imbalance > one.parallelism.expert),
    ),
    rule_against(
        "E485",
        "the router computes in the dtype of the model or in fp32",
        {"model.experts.router_dtype": ["fp32"], "precision.compute": ["bf16"]},
        _if_experts(
            lambda one, experts: (
                experts.router_dtype == "bf16" and one.precision.compute not in ("bf16", "fp8")
            )
        ),
    ),
    rule_against(
        "E486",
        "the ranks that shard one copy of the other states hold whole copies of the experts "
        "(torchtitan's efsdp is fsdp x tp / (ep x etp))",
        {
            "memory.shard_over": lambda one: [
                *near_divisors(one.memory.shard_over or 2, one.parallelism.data, 2),
                None,
            ],
            "parallelism.expert": lambda one: near_divisors(
                one.parallelism.expert, one.parallelism.expert
            ),
        },
        _if_experts(lambda one, _: one.memory.shard_over and _splits_experts(one)),
        "memory.shard_over is {one.memory.shard_over} replicas, which do not hold a whole number "
        "of copies of the experts (parallelism.expert is {one.parallelism.expert})",
    ),
    rule_against(
        "E488",
        "the gate scales the output of the shared expert",
        {"model.experts.shared_gate": [False], "model.experts.shared_ffn_hidden_size": []},
        _if_experts(
            lambda one, experts: experts.shared_gate and not experts.shared_ffn_hidden_size
        ),
    ),
    rule_against(
        "E489",
        "the shared expert overlaps with the all-to-alls of the routed experts "
        "(transformer_config.py)",
        {"overlap.shared_expert": [False], "parallelism.expert_dispatch": ["all_to_all"]},
        lambda one: (
            one.overlap.shared_expert
            and (
                one.model.experts is None
                or not one.model.experts.shared_ffn_hidden_size
                or one.parallelism.expert_dispatch != "all_to_all"
            )
        ),
        "overlap.shared_expert is true, but the model has no shared expert or the dispatch is not "
        "all_to_all",
    ),
]
