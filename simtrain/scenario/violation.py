"""Rules of the framework, and violations of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol

from simtrain.scenario.allowed_values import Values, shown
from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.schema import Scenario

LEFT_OUT: Final = object()
"""Marker in a remedy: remove the field."""


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
Condition = Callable[[Scenario], object]


class Rule(Protocol):
    """A rule of the framework, and what `simtrain explain` says about it."""

    @property
    def code(self) -> str:
        """The error code."""
        ...

    @property
    def reason(self) -> str:
        """Why the rule exists, as a clause without a full stop."""
        ...

    @property
    def check(self) -> Check:
        """A function that returns the violation by a scenario, or None."""
        ...

    @property
    def what(self) -> str:
        """What is wrong, without the values of a scenario, as a sentence."""
        ...

    @property
    def fix(self) -> str:
        """How to fix it, as a sentence; an error names the nearest legal values instead."""
        ...

    @property
    def example(self) -> str:
        """Lines of YAML that break this rule, and no other, in a legal scenario."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenRule:
    """A rule whose check and words are written out; the fields are those of `Rule`."""

    code: str
    reason: str
    check: Check
    what: str
    fix: str
    example: str


class RuleDecorator(Protocol):
    """A function that takes the fields of a `Rule` and returns a decorator of its check."""

    def __call__(
        self, code: str, reason: str, *, what: str, fix: str, example: str
    ) -> Callable[[Check], Check]:
        """Return the decorator of a check."""


def registering(table: list[Rule]) -> RuleDecorator:
    """Return a decorator that adds the decorated check to `table` as a `Rule`."""

    def rule(
        code: str, reason: str, *, what: str, fix: str, example: str
    ) -> Callable[[Check], Check]:
        """Return a decorator that registers a check with its code and explanation."""

        def register(check: Check) -> Check:
            table.append(WrittenRule(code, reason, check, what, fix, example))
            return check

        return register

    return rule


# Nine parameters: those of `WrittenRule` and `Violation`, of which a rule is one call.
def rule_against(
    code: str,
    reason: str,
    values: Mapping[str, Values],
    is_broken: Condition,
    message: str = "",
    fields: tuple[str, ...] = (),
    *,
    what: str,
    fix: str,
    example: str,
) -> Rule:
    """Return a rule that refuses a combination of settings.

    Args:
        code, reason, what, fix, example: as in `Rule`.
        values, fields: as in `Violation`.
        is_broken: true for a scenario with the refused combination.
        message: what is wrong, with {scenario} for the scenario; by default, it names the first two
            fields.
    """

    def check(scenario: Scenario) -> Violation | None:
        """Return the violation if the rule is broken, with the values to try instead."""
        if not is_broken(scenario):
            return None
        said = message.format(scenario=scenario) or _conflict(scenario, *fields, *values)
        return Violation(said, values_to_try(values, scenario), fields)

    return WrittenRule(code, reason, check, what, fix, example)


def values_to_try(values: Mapping[str, Values], scenario: Scenario) -> dict[str, Iterable[object]]:
    """Return the values to try for each field in a scenario."""
    return {field: ways(scenario) if callable(ways) else ways for field, ways in values.items()}


def _conflict(scenario: Scenario, *fields: str) -> str:
    first, second, *_ = dict.fromkeys(fields)
    value, other = attrgetter(first, second)(scenario)
    if value is other is True:
        return f"{first} is true together with {second}"
    return f"{first} is {shown(value)} while {second} is {shown(other)}"


_getter = functools.cache(attrgetter)


def not_a_multiple(
    scenario: Scenario,
    number: str,
    divisor: str = "parallelism.tensor",
    more: str = "",
    values: Mapping[str, Iterable[object]] = MappingProxyType({}),
) -> Violation | None:
    """Return the violation of a field, `number`, that another one, `divisor`, does not divide.

    `more` ends the message; `values` are further remedies. A `divisor` of null means
    parallelism.tensor.
    """
    whole, part = _getter(number, divisor)(scenario)
    part = part or scenario.parallelism.tensor
    if whole % part == 0:
        return None
    nearest = {number: near_multiples(whole, part), divisor: near_divisors(part, whole)}
    message = f"{number} is {whole}, which {divisor} ({part}) does not divide{more}"
    return Violation(message, {**nearest, **values})
