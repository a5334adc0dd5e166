"""Explanations of error codes: what is wrong, why it is an error, how to fix it, and an example.

A rule of scenarios explains itself (`simtrain.scenario.violation.Rule`). The TOML files of this
package contain the other codes, one file per hundred.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from simtrain.errors import InputError, did_you_mean
from simtrain.scenario.check import EVERY_RULE

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


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of an error code.

    Args:
        code: such as "E310".
        what: what is wrong.
        why: why simtrain refuses it.
        fix: how to fix it.
        example: input with this error: a command, lines to merge into a legal scenario, or a
            sentence if the error depends on a machine or a folder.
    """

    code: str
    what: str
    why: str
    fix: str
    example: str

    @property
    def is_text(self) -> bool:
        """Whether the example is input to type, not a sentence."""
        return not self.example.endswith(".")


@functools.cache
def explanations() -> dict[str, Explanation]:
    """Load every explanation by its code, sorted by code."""
    of_rules = [
        Explanation(rule.code, rule.what, _sentence(rule.reason), rule.fix, rule.example)
        for rule in EVERY_RULE
    ]
    of_others = [
        Explanation(code, **entry)
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
        fix = f"{did_you_mean(name, known)}simtrain explain lists all codes"
        raise InputError.of("E115", f'no error has the code "{code}"', fix=fix)
    return known[name]
