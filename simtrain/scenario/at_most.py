"""Rules of the kind "a number is at most another one": one row each, as in `requirement`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simtrain.scenario.allowed_values import Values, listed
from simtrain.scenario.requirement import Given, default_of, value_getter, where
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Check, Violation, values_to_try


@dataclass(frozen=True)
class AtMost:
    """A rule of the framework: a number is at most another one.

    A field that is null, 0, a word, or in a section that is left out, has no number.

    Args:
        code: the error code.
        number: the field, or several; the first with a larger number is blamed.
        limit: the largest legal number in words: a field, or "the layers of the largest chunk".
        limit_of: the largest legal number, or None if other rules refuse the scenario.
        why: the reason, as a clause without a full stop.
        example: lines of YAML that break this rule, and no other, in a legal scenario.
        given: the scenarios to which the rule applies; all by default.
        near: values to try for further fields, which are blamed too, or instead of the limit; if
            the field can be null, null is tried too.
    """

    code: str
    number: str | tuple[str, ...]
    limit: str
    limit_of: Callable[[Scenario], float | None]
    why: str
    example: str
    given: Given | None = None
    near: Mapping[str, Values] = field(default_factory=dict)

    @functools.cached_property
    def numbers(self) -> tuple[str, ...]:
        """The fields that are limited."""
        return (self.number,) if isinstance(self.number, str) else self.number

    @property
    def reason(self) -> str:
        """Why the rule exists."""
        return self.why

    @property
    def what(self) -> str:
        """What is wrong, without the values of a scenario."""
        return f"{where(self.given)}{listed(self.numbers, 'or')} is more than {self.limit}."

    @property
    def fix(self) -> str:
        """How to fix it, without the values of a scenario."""
        or_null = ", or remove it" if default_of(self.numbers[0]) is None else ""
        return f"Set {listed(self.numbers, 'and')} to at most {self.limit}{or_null}."

    @functools.cached_property
    def check(self) -> Check:
        """The function that returns the violation by a scenario, or None."""
        readers = [(name, value_getter(name)) for name in self.numbers]
        applies = self.given.holds if self.given else None

        def violation_of(scenario: Scenario) -> Violation | None:
            """Return the violation of the first field whose number is larger than the limit."""
            values = [(name, read(scenario)) for name, read in readers]
            numbers = [each for each in values if each[1] and isinstance(each[1], (int, float))]
            if not numbers or (applies is not None and not applies(scenario)):
                return None
            limit = self.limit_of(scenario)
            for name, number in numbers:
                if limit is not None and number > limit:
                    return self._violation(scenario, name, number, limit)
            return None

        return violation_of

    def _violation(self, scenario: Scenario, name: str, number: object, limit: float) -> Violation:
        """Return the violation, with the values of the scenario."""
        nearest = {name: [limit, None] if default_of(name) is None else [limit]}
        return Violation(
            f"{name} is {number}, more than {self.limit} ({limit})",
            {**nearest, **values_to_try(self.near, scenario)},
        )
