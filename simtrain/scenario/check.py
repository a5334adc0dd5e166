"""Whether a scenario is legal: every rule at once, for the framework and for the cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simtrain.errors import InputError
from simtrain.scenario.attention_rules import ATTENTION_RULES, fused_attention_rule
from simtrain.scenario.memory_rules import MEMORY_RULES, host_link_rule
from simtrain.scenario.rules import SPLIT_RULES, cluster_rule
from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import STAGE_RULES
from simtrain.scenario.violation import Rule, problem_of

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (*SPLIT_RULES, *STAGE_RULES, *MEMORY_RULES, *ATTENTION_RULES), key=lambda rule: rule.code
    )
)

_CLUSTER_RULES = (cluster_rule(1, 1), host_link_rule(False), fused_attention_rule(False))
REASONS = {rule.code: rule.reason for rule in (*RULES, *_CLUSTER_RULES)}
"""Why each rule is, by its code; those of clusters too."""


def check_scenario(scenario: Scenario) -> None:
    """Refuse a scenario that the training framework would refuse.

    Raises:
        InputError: one problem for each broken rule, with the nearest legal values.
    """
    _check(scenario, RULES, RULES)


def check_some(scenario: Scenario, codes: Collection[str]) -> None:
    """Refuse a scenario that breaks one of these rules, whatever it does to the others.

    Raises:
        InputError: as `check_scenario`.
    """
    rules = [rule for rule in RULES if rule.code in codes]
    _check(scenario, rules, rules)


def check_cluster(
    scenario: Scenario,
    gpus_per_node: int,
    num_nodes: int,
    *,
    has_host_link: bool,
    has_fused_attention: bool,
) -> None:
    """Refuse a scenario that needs more GPUs than a cluster of `num_nodes` nodes has.

    Also one that offloads to a host, or runs fused attention, whose speed the cluster's profile
    does not tell.

    Raises:
        InputError: with the nearest legal numbers of replicas, stages or ranks that fit.
    """
    rules = [
        cluster_rule(gpus_per_node, num_nodes),
        host_link_rule(has_host_link),
        fused_attention_rule(has_fused_attention),
    ]
    _check(scenario, rules, RULES)


def _check(scenario: Scenario, rules: Sequence[Rule], all_rules: Sequence[Rule]) -> None:
    found = [(rule, rule.check(scenario)) for rule in rules]
    broken = [(rule, violation) for rule, violation in found if violation]
    if broken:
        raise InputError(problem_of(scenario, *one, all_rules) for one in broken)
