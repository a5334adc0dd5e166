"""Errors for broken rules: the place, the reason, and legal values to write instead.

No remedy breaks another rule. Each remedy leaves fewer broken rules, so remedies never form a
cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from simtrain.base.strict_yaml import as_scalar, data_of
from simtrain.errors import InputError, Location, Problem
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, Rule, Violation

_VALUES_PER_FIELD = 2
_MOST_TOGETHER = 3
_TRIED_PER_FIELD = 4
_MOST_TRIED = 200
"""Limits of the search for fields to change together, which takes about 0.1 s at most."""


def broken_codes(scenario: Scenario, rules: Sequence[Rule]) -> set[str]:
    """Return the codes of the rules that the scenario breaks."""
    return {rule.code for rule in rules if rule.check(scenario)}


def changed(scenario: Scenario, changes: Mapping[str, object]) -> Scenario | None:
    """Return the scenario with these fields set or removed; None if a value is invalid."""
    try:
        for field, value in changes.items():
            if value is LEFT_OUT:
                field, _, name = field.partition(".")
                value = data_of(getattr(scenario, field), only_set=True)
                value.pop(name, None)
            scenario = scenario.replace({field: value})
    except InputError:
        return None
    return scenario


def suggest(
    scenario: Scenario, rule: Rule, violation: Violation, rules: Sequence[Rule]
) -> dict[str, list[object]]:
    """Return, for each field, the nearest values that satisfy `rule` and break no further rule.

    If some values leave no rule broken, return only those values.
    """
    before = broken_codes(scenario, rules)
    satisfying = [
        (field, value, broken_codes(state, rules))
        for field, values in violation.values.items()
        for value in values
        if (state := changed(scenario, {field: value})) and rule.check(state) is None
    ]
    legal = [fix for fix in satisfying if not fix[2]]
    harmless = [fix for fix in satisfying if fix[2] <= before]
    nearest: dict[str, list[object]] = {}
    for field, value, _ in legal or harmless:
        nearest.setdefault(field, []).append(value)
    return {field: values[:_VALUES_PER_FIELD] for field, values in nearest.items()}


def suggest_together(
    scenario: Scenario, rule: Rule, rules: Sequence[Rule]
) -> dict[str, object] | None:
    """Return the fewest changes that together satisfy `rule` and break no further rule.

    The search is breadth-first: if a change breaks another rule, it also tries the values of that
    rule.
    """
    before = broken_codes(scenario, rules)

    def left(state: Scenario) -> list[Violation]:
        new = [other for other in rules if other.code not in before]
        violations = (checked.check(state) for checked in (rule, *new))
        return [violation for violation in violations if violation]

    def further(state: Scenario, changes: dict[str, object]) -> Iterator[dict[str, object]]:
        """Yield the changes with one more, for each field and value that a violation names."""
        for violation in left(state):
            for field, values in violation.values.items():
                if field not in changes:
                    for value in islice(values, _TRIED_PER_FIELD):
                        yield changes | {field: value}

    waiting = deque([further(scenario, {})])
    num_tried = 0
    while waiting:
        for changes in waiting.popleft():
            state, num_tried = changed(scenario, changes), num_tried + 1
            if num_tried > _MOST_TRIED:
                return None
            if state is None:
                continue
            if not left(state):
                return changes
            if len(changes) < _MOST_TOGETHER:
                waiting.append(further(state, changes))
    return None


def problem_of(
    scenario: Scenario, rule: Rule, violation: Violation, rules: Sequence[Rule]
) -> Problem:
    """Return the error about a violation, with its place, reason and remedy."""
    fields = violation.fields or tuple(violation.values)
    if fixes := suggest(scenario, rule, violation, rules):
        fix = ", or ".join(_in_words(fixes))
    elif together := suggest_together(scenario, rule, rules):
        fix = " and ".join(_in_words({field: [value] for field, value in together.items()}))
    else:
        fix = f"change several of these fields together: {', '.join(fields)}"
    return Problem(rule.code, violation.message, _blamed(scenario, fields), rule.reason, fix)


def _in_words(changes: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """Yield the changes, omitting a repeated verb: write a: 8 or 4; b: 1f1b; remove c."""
    last = ""
    for field, values in changes.items():
        is_left_out = LEFT_OUT in values
        verb = "remove " if is_left_out else "write "
        what = field if is_left_out else f"{field}: {' or '.join(map(as_scalar, values))}"
        yield what if verb == last else verb + what
        last = verb


def _blamed(scenario: Scenario, fields: Sequence[str]) -> Location | None:
    """Return the place of the first overridden field, or else of the first written field."""
    positions = scenario.positions
    paths = [tuple(field.split(".")) for field in fields]
    written = [path for path in paths if path in positions.places]
    # Overrides come last, and only overrides have no line number.
    overridden = [path for path in written if positions.places[path].value.line is None]
    return positions.of_value((overridden or written or paths)[0])
