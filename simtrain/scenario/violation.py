"""A rule, what breaks it, and the error that says so: its place, its reason and its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from simtrain.errors import InputError, Location, Problem
from simtrain.scenario.schema import Scenario
from simtrain.strict_yaml import as_scalar

_VALUES_PER_FIELD = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    message: what is wrong.
    values: for each field that can be changed, by its dotted name, the values to try in order.
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


def broken_codes(scenario: Scenario, rules: Sequence[Rule]) -> set[str]:
    """The codes of the rules that the scenario breaks."""
    return {rule.code for rule in rules if rule.check(scenario)}


def suggest(
    scenario: Scenario, rule: Rule, violation: Violation, rules: Sequence[Rule]
) -> dict[str, list[object]]:
    """For each field, the nearest values that mend `rule` and leave none of `rules` broken.

    If no single value does that: those that mend `rule` and break no other anew, else those that
    at least mend `rule`, else nothing.
    """
    before = broken_codes(scenario, rules)
    mending = [
        (field, value, broken_codes(changed, rules))
        for field, values in violation.values.items()
        for value in values
        if (changed := _changed(scenario, field, value)) and rule.check(changed) is None
    ]
    legal = [fix for fix in mending if not fix[2]]
    harmless = [fix for fix in mending if fix[2] <= before]
    nearest: dict[str, list[object]] = {}
    for field, value, _ in legal or harmless or mending:
        nearest.setdefault(field, []).append(value)
    return {field: values[:_VALUES_PER_FIELD] for field, values in nearest.items()}


def _changed(scenario: Scenario, field: str, value: object) -> Scenario | None:
    try:
        return scenario.replace({field: value})
    except InputError:
        return None


def problem_of(
    scenario: Scenario, rule: Rule, violation: Violation, rules: Sequence[Rule]
) -> Problem:
    """The violation as the user reads it."""
    fixes = suggest(scenario, rule, violation, rules).items()
    # One line: parallelism.tensor: 8 or 4, or schedule: 1f1b.
    choice = ", or ".join(f"{field}: {' or '.join(map(as_scalar, fix))}" for field, fix in fixes)
    fields = violation.fields or tuple(violation.values)
    together = f"change {' and '.join(fields)} together: no single value is enough"
    return Problem(
        rule.code,
        violation.message,
        _blamed(scenario, fields),
        reason=rule.reason,
        fix=f"write {choice}" if choice else together,
    )


def _blamed(scenario: Scenario, fields: Sequence[str]) -> Location | None:
    """The place of the first field that was overridden, else of the first that was written."""
    positions = scenario.positions
    paths = [tuple(field.split(".")) for field in fields]
    written = [path for path in paths if path in positions]
    # An override is what the user changed last, and it alone has no line.
    overridden = [path for path in written if positions.values[path].line is None]
    return positions.of_value((overridden or written or paths)[0])
