"""What the rules of scenarios say of themselves, as `simtrain show CODE` reads it."""

import json

from simtrain.base.strict_yaml import overlay, parse_document
from simtrain.scenario.check import EVERY_RULE
from simtrain.scenario.remedies import problem_of
from simtrain.scenario.rule import Rule
from simtrain.scenario.rules import RULES
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import spell_out_words

LEGAL = """\
model: {num_layers: 48, hidden_size: 6144, num_attention_heads: 64, seq_length: 2048}
batch: {micro: 4, global: 64}
"""
"""The legal scenario into which the examples of rules are merged."""


def rules_text() -> str:
    """Return `simtrain/render/explanations/rules.toml`."""
    parts = ["# Made from the rules of simtrain/scenario: python -m docs.update\n"]

    for rule in sorted(EVERY_RULE, key=lambda rule: rule.code):
        what, fix = _what_and_fix(rule)
        texts = {"what": what, "why": _sentence(rule.why), "fix": fix, "example": rule.example}
        lines = [f"{name} = {json.dumps(text, ensure_ascii=False)}" for name, text in texts.items()]
        parts.append("\n".join([f"[{rule.code}]", *lines, ""]))

    return "\n".join(parts)


def _what_and_fix(rule: Rule) -> tuple[str, str]:
    if rule.example.endswith("."):
        return rule.example, _sentence(rule.hint)

    scenario = example_of(rule)
    message = rule.check(scenario) or ""
    rules = RULES if rule in RULES else [*RULES, rule]
    return f"{message}.", _sentence(problem_of(scenario, rule, message, rules).fix or "")


def example_of(rule: Rule) -> Scenario:
    """Return the scenario that breaks a rule, and no other."""
    documents = (parse_document(rule.example, "example.yaml"), parse_document(LEGAL, "legal.yaml"))
    example, base = map(spell_out_words, documents)
    return Scenario.from_document(overlay(base, example))


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."
