"""A rule of the framework, and what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from simtrain.scenario.schema import Scenario
from simtrain.strict_yaml import as_scalar


class LeftOut(Enum):
    """Stands for no value in a remedy: the field is to be left out."""

    LEFT_OUT = "left out"


LEFT_OUT = LeftOut.LEFT_OUT


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    message: what is wrong.
    values: for each field that can be changed, by its dotted name, the values to try in order;
        `LEFT_OUT` where it is to be left out.
    fields: the fields to blame, the first one first; if empty, those of `values`.
    """

    message: str
    values: Mapping[str, Iterable[object]]
    fields: tuple[str, ...] = ()


Check = Callable[[Scenario], Violation | None]
Values = Iterable[object] | Callable[[Scenario], Iterable[object]]
"""Values to try for a field, or how they follow from the scenario."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the framework: `check` returns what breaks it, `reason` says why it exists."""

    code: str
    reason: str
    check: Check


def registering(table: list[Rule]) -> Callable[[str, str], Callable[[Check], Check]]:
    """A decorator with a code and a reason that enters the decorated check into a table."""

    def rule(code: str, reason: str) -> Callable[[Check], Check]:
        def register(check: Check) -> Check:
            table.append(Rule(code, reason, check))
            return check

        return register

    return rule


def rule_against(
    code: str,
    reason: str,
    values: Mapping[str, Values],
    is_broken: Callable[[Scenario], object],
    message: str = "",
    fields: tuple[str, ...] = (),
) -> Rule:
    """The rule that refuses a combination of settings.

    Args:
        code, reason: as in `Rule`.
        values, fields: as in `Violation`.
        is_broken: true for a scenario with the refused combination.
        message: what is wrong, with {one} for the scenario; by default the first two of `values`.
    """

    def check(scenario: Scenario) -> Violation | None:
        if not is_broken(scenario):
            return None
        first, second, *_ = values
        value, other = attrgetter(first, second)(scenario)
        default = f"{first} is {as_scalar(value)} while {second} is {as_scalar(other)}"
        if value is other is True:
            default = f"{first} is true together with {second}"
        to_try = {
            field: ways(scenario) if callable(ways) else ways for field, ways in values.items()
        }
        return Violation(message.format(one=scenario) or default, to_try, fields)

    return Rule(code, reason, check)
