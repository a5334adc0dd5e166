"""Explanations of error codes: what is wrong, why it is an error, how to fix it, and an example.

A rule of scenarios explains itself by its example. The TOML files of this package contain the other
codes, one file per hundred.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simtrain.base.strict_yaml import overlay, parse_document
from simtrain.errors import InputError, did_you_mean
from simtrain.scenario.check import EVERY_RULE
from simtrain.scenario.remedies import problem_of
from simtrain.scenario.rule import Rule
from simtrain.scenario.rules import RULES
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import spell_out_words

_FOLDER = Path(__file__).parent
TITLES = {
    "1": "Input that cannot be read",
    "2": "Values that no scenario, sweep or profile can have",
    "3": "Combinations that the training framework refuses",
    "4": "Schedules, pipeline layouts, and rules of models with experts",
    "5": "Programs for the engine, and results",
    "6": "Legal scenarios that do not fit",
    "7": "Measuring a machine and fitting a profile",
    "8": "Sweeps, searches, figures, costs and imports",
    "9": "Command lines",
}
"""The subject of each hundred codes, by the first digit."""


LEGAL = """\
model: {num_layers: 48, hidden_size: 6144, num_attention_heads: 64, seq_length: 2048}
batch: {micro: 4, global: 64}
"""
"""The legal scenario into which the examples of rules are merged."""


@dataclass(frozen=True)
class Explanation:
    """The explanation of an error code.

    Args:
        code: such as "E310".
        why: why simtrain refuses it.
        example: input with this error: a command, lines to merge into a legal scenario, or a
            sentence if the error depends on a machine or a folder.
        source: the rule, whose example says the rest, or what the TOML file says.
    """

    code: str
    why: str
    example: str
    source: Rule | Mapping[str, str]

    @property
    def is_text(self) -> bool:
        return not self.example.endswith(".")

    @functools.cached_property
    def what(self) -> str:
        """What is wrong, as a sentence; of a rule, what is wrong with its example."""
        if not isinstance(self.source, Rule):
            return self.source["what"]
        if not self.is_text:
            return self.example
        return f"{self.source.check(example_of(self.source))}."

    @functools.cached_property
    def fix(self) -> str:
        if not isinstance(self.source, Rule):
            return self.source["fix"]
        if not self.is_text:
            return _sentence(self.source.hint)
        scenario = example_of(self.source)
        rules = RULES if self.source in RULES else [*RULES, self.source]
        message = self.source.check(scenario) or ""
        return _sentence(problem_of(scenario, self.source, message, rules).fix or "")


def example_of(rule: Rule) -> Scenario:
    """Return the scenario that breaks a rule, and no other."""
    documents = (parse_document(rule.example, "example.yaml"), parse_document(LEGAL, "legal.yaml"))
    example, base = map(spell_out_words, documents)
    return Scenario.from_document(overlay(base, example))


@functools.cache
def explanations() -> dict[str, Explanation]:
    """Load every explanation by its code, sorted by code."""
    of_rules = [
        Explanation(rule.code, _sentence(rule.why), rule.example, rule) for rule in EVERY_RULE
    ]
    of_others = [
        Explanation(code, entry["why"], entry["example"], entry)
        for file in _FOLDER.glob("*.toml")
        for code, entry in tomllib.loads(file.read_text(encoding="utf-8")).items()
    ]
    return {each.code: each for each in sorted(of_rules + of_others, key=lambda it: it.code)}


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def explain(code: str) -> Explanation:
    """Return the explanation of a code, in upper or lower case, with or without its E.

    Raises:
        InputError: no error has this code.
    """
    known = explanations()
    written = code.strip().upper()
    name = written if written.startswith("E") else f"E{written}"
    if name not in known:
        fix = f"{did_you_mean(name, known)}simtrain show errors lists all codes"
        raise InputError.of("E115", f'no error has the code "{code}"', fix=fix)
    return known[name]
