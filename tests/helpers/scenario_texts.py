"""A minimal scenario as text, and ways to change it, for tests of scenario files."""

from typing import Any

from simtrain.base.strict_yaml import as_scalar, parse_document
from simtrain.scenario import RULES, Rule, Scenario, check_scenario
from simtrain.scenario.remedies import suggest

MINIMAL = """\
model:
  num_layers: 48
  hidden_size: 6144
  num_attention_heads: 64
  seq_length: 2048
batch:
  micro: 4
  global: 64
"""


def edited(old: str, new: str) -> str:
    """Return the minimal scenario with one replacement."""
    assert MINIMAL.count(old) == 1
    return MINIMAL.replace(old, new)


def scenario_of(text: str) -> Scenario:
    scenario = Scenario.from_document(parse_document(text, "x.yaml"))
    check_scenario(scenario)
    return scenario


def fixes_of(text: str, code: str) -> list[str]:
    """Return the fixes that a rule suggests, as lines of a scenario."""
    scenario = Scenario.model_validate(scenario_data(text))
    rule = rule_of(code)
    message = rule.check(scenario)
    assert message is not None
    fixes = suggest(scenario, rule, message, RULES).items()
    return [f"{field}: {as_scalar(value)}" for field, values in fixes for value in values]


def scenario_data(text: str) -> dict[str, Any]:
    return parse_document(text, "x.yaml").data


def rule_of(code: str) -> Rule:
    return next(rule for rule in RULES if rule.code == code)
