"""Rules of the framework, and violations of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from simtrain.scenario.schema import Scenario
from simtrain.strict_yaml import as_scalar


class LeftOut(Enum):
    """Marker in a remedy: remove the field."""

    LEFT_OUT = "left out"


LEFT_OUT = LeftOut.LEFT_OUT


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a rule by a scenario.

    Args:
        message: what is wrong.
        values: values to try for each field (by its dotted name), in order; `LEFT_OUT` removes the
            field.
        fields: the fields at fault, the main one first; the fields of `values` by default.
    """

    message: str
    values: Mapping[str, Iterable[object]]
    fields: tuple[str, ...] = ()


Check = Callable[[Scenario], Violation | None]
Values = Iterable[object] | Callable[[Scenario], Iterable[object]]
"""Values to try for a field, or a function of the scenario that returns them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the framework.

    Args:
        code: the error code.
        reason: why the rule exists, as a clause without a full stop.
        check: returns the violation by a scenario, or None.
    """

    code: str
    reason: str
    check: Check


def registering(table: list[Rule]) -> Callable[[str, str], Callable[[Check], Check]]:
    """Return a decorator that adds the decorated check to `table`, with a code and a reason."""

    def rule(code: str, reason: str) -> Callable[[Check], Check]:
        """Return a decorator that registers a check with its code and reason."""

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
    """Return a rule that refuses a combination of settings.

    Args:
        code, reason: as in `Rule`.
        values, fields: as in `Violation`.
        is_broken: true for a scenario with the refused combination.
        message: what is wrong, with {one} for the scenario; by default, it names the first two
            fields of `values`.
    """

    def check(scenario: Scenario) -> Violation | None:
        """Return the violation if the rule is broken, with the values to try instead."""
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
