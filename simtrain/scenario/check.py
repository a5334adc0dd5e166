"""Whether a scenario is legal: every rule at once, for the framework and for the cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from simtrain.errors import InputError, Problem
from simtrain.scenario.attention_rules import ATTENTION_RULES, fused_attention_rule
from simtrain.scenario.memory_rules import MEMORY_RULES, host_link_rule
from simtrain.scenario.rules import SPLIT_RULES, cluster_rule
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import IN_PYTHON
from simtrain.scenario.stage_rules import STAGE_RULES
from simtrain.scenario.violation import Rule, problem_of
from simtrain.strict_yaml import data_of, input_error

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


def check_values(scenario: Scenario) -> None:
    """Refuse values that pydantic's `model_copy` did not check, and anything but a scenario.

    Raises:
        InputError: one problem for each wrong value.
    """
    if not isinstance(scenario, Scenario):
        raise InputError([_not_a_scenario(scenario)])
    data = data_of(scenario)
    try:
        valid = Scenario.model_validate(data)
    except ValidationError as error:
        raise input_error(error, Scenario, data, scenario.positions, "the scenario") from None
    # A dict can have the right values of a section, and a section a second value by its alias.
    wrong = [
        Problem(
            "E203",
            f"{name} is {getattr(scenario, name)!r:.80}, not a valid {type(section).__name__}",
            IN_PYTHON,
            fix=f'change the scenario with replace({{"{name}": ...}}) instead of model_copy',
        )
        for name, section in valid
        if getattr(scenario, name) != section
    ]
    if wrong:
        raise InputError(wrong)


def _not_a_scenario(value: Any) -> Problem:
    if isinstance(value, (str, PurePath)):
        fix = f'load the scenario, as in simulate(load_scenario("{value}"))'
        return Problem("E114", f'"{value}" is a name, not a Scenario', fix=fix)
    return Problem(
        "E114",
        f"a {type(value).__name__} is not a Scenario",
        fix="load one with load_scenario, or build one with Scenario(model=..., batch=...)",
    )


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
