"""Rules of the kind "a setting is off while …": what excludes it follows from several fields."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from simtrain.scenario.allowed_values import AllowedValues, Values, listed
from simtrain.scenario.requirement import (
    MISSING,
    broken_in_words,
    sentence_of,
    settings_on,
    steps_near,
    steps_to,
    value_getter,
    values_in_words,
    values_near,
    values_that_are_off,
)
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Check, Condition, Violation, values_to_try


@dataclass(frozen=True)
class Excludes:
    """A rule of the framework: a setting must be off while a condition holds.

    As `Requires`, for what is no set of values of a field: a trait of the schedule, a fact of the
    software stack, or what several fields decide together.

    Args:
        code: the error code.
        setting: the field, or several of which none may be on. The first is blamed first.
        words: the condition, as a clause such as "no passes are merged".
        holds: the condition.
        why: the reason, as a clause without a full stop.
        example: lines of YAML that break this rule, and no other, in a legal scenario.
        off: the values of the setting that are legal; its default, unless given.
        reads: the fields that decide the condition, which an error shows with their values.
        near: values to try for each field with which the condition may not hold, in order.
        near_first: true suggests these before values that are off.
    """

    code: str
    setting: str | tuple[str, ...]
    words: str
    holds: Condition
    why: str
    example: str
    off: object = MISSING
    reads: tuple[str, ...] = ()
    near: Mapping[str, Values] = field(default_factory=dict)
    near_first: bool = False

    @functools.cached_property
    def settings(self) -> dict[str, AllowedValues]:
        """The legal values of each setting."""
        return values_that_are_off(self.setting, self.off)

    @property
    def reason(self) -> str:
        """Why the rule exists."""
        return self.why

    @property
    def what(self) -> str:
        """What is wrong, without the values of a scenario."""
        on = listed([f"{name} {off.broken}" for name, off in self.settings.items()], "or")
        return f"{on} while {self.words}."

    @property
    def fix(self) -> str:
        """How to fix it, without the values of a scenario."""
        ways, off = steps_near(self.near), steps_to(self.settings)
        return sentence_of([*ways, off] if self.near_first else [off, *ways])

    @functools.cached_property
    def check(self) -> Check:
        """The function that returns the violation by a scenario, or None."""
        settings = [(value_getter(name), off.has) for name, off in self.settings.items()]

        def violation_of(scenario: Scenario) -> Violation | None:
            """Return the violation if a setting is on and the condition holds."""
            for value_of, is_off in settings:
                value = value_of(scenario)
                if not is_off(value) and value is not MISSING:
                    return self._violation(scenario) if self.holds(scenario) else None
            return None

        return violation_of

    def _violation(self, scenario: Scenario) -> Violation:
        """Return the violation, with the values of the scenario."""
        on = settings_on(self.settings, scenario)
        message = f"{broken_in_words(on, scenario)} while {self.words}"
        if self.reads:
            message = f"{message} ({values_in_words(self.reads, scenario)})"
        near = values_to_try(self.near, scenario)
        off = {name: values_near(values, scenario) for name, values in on.items()}
        return Violation(message, near | off if self.near_first else off | near, (*on, *self.reads))
