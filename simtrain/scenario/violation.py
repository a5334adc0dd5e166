"""A rule, what breaks it, and how that is told: located, with its reason and a way to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice

from simtrain.errors import Location, Problem
from simtrain.scenario.nearest import Fix
from simtrain.scenario.schema import Scenario

_VALUES_PER_FIELD = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: the fields it speaks of, the first to blame first, and ways to mend it.

    `candidates` yields values to try, of each field the nearest first.
    """

    fields: tuple[str, ...]
    message: str
    candidates: tuple[Iterable[Fix], ...]


Check = Callable[[Scenario], Violation | None]


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


def broken_codes(scenario: Scenario, rules: Sequence[Rule]) -> set[str]:
    """The codes of the rules that the scenario breaks."""
    return {rule.code for rule in rules if rule.check(scenario)}


def suggest(
    scenario: Scenario, rule: Rule, violation: Violation, rules: Sequence[Rule]
) -> list[Fix]:
    """The nearest values of each field that mend `rule` and leave none of `rules` broken.

    Where no single value does that: those that mend `rule` and break no other anew, else those
    that at least mend `rule`, else nothing.
    """
    before = broken_codes(scenario, rules)
    mending = [
        (fix, broken_codes(changed, rules))
        for fix in chain.from_iterable(violation.candidates)
        if (changed := _mended(scenario, rule, fix))
    ]
    legal = [fix for fix, broken in mending if not broken]
    harmless = [fix for fix, broken in mending if broken <= before]
    return _nearest_of_each_field(legal or harmless or [fix for fix, _ in mending])


def _nearest_of_each_field(fixes: list[Fix]) -> list[Fix]:
    fields = dict.fromkeys(fix.field for fix in fixes)
    return [
        fix
        for field in fields
        for fix in islice((one for one in fixes if one.field == field), _VALUES_PER_FIELD)
    ]


def _mended(scenario: Scenario, rule: Rule, fix: Fix) -> Scenario | None:
    changed = fix.apply(scenario)
    return changed if changed and rule.check(changed) is None else None


def problem_of(
    scenario: Scenario, rule: Rule, violation: Violation, rules: Sequence[Rule]
) -> Problem:
    """The violation as the user reads it."""
    fixes = suggest(scenario, rule, violation, rules)
    together = f"change {' and '.join(violation.fields)} together: no single value is enough"
    return Problem(
        rule.code,
        violation.message,
        _blamed(scenario, violation),
        reason=rule.reason,
        fix=f"write {_as_choice(fixes)}" if fixes else together,
    )


def _as_choice(fixes: list[Fix]) -> str:
    """The fixes as one line: parallelism.tensor: 8 or 4, or schedule: 1f1b."""
    by_field = groupby(fixes, key=lambda fix: fix.field)
    return ", or ".join(
        f"{field}: {' or '.join(fix.written for fix in same)}" for field, same in by_field
    )


def _blamed(scenario: Scenario, violation: Violation) -> Location | None:
    """Where the first field that was overridden, else the first that was written, stands."""
    positions = scenario.positions
    paths = [tuple(field.split(".")) for field in violation.fields]
    written = [path for path in paths if path in positions]
    # An override is what the user changed last, and it alone has no line.
    overridden = [path for path in written if positions.values[path].line is None]
    return positions.of_value((overridden or written or paths)[0])
