"""Rules of the kind "a setting needs others": one row each, from which all its words follow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from pydantic import BaseModel

from simtrain.scenario.allowed_values import (
    AllowedValues,
    Values,
    as_allowed,
    either,
    listed,
    one_of,
    shown,
)
from simtrain.scenario.field_docs import name_in_files, section_of
from simtrain.scenario.schema import STACK_DEFAULTS, Scenario
from simtrain.scenario.software import DEFAULT_FACTS, Kernels
from simtrain.scenario.violation import LEFT_OUT, Condition, Violation

MISSING: Final = object()
"""The value of a field whose section is left out."""


@dataclass(frozen=True)
class Given:
    """A restriction of a row to some scenarios, with its words, such as "context parallelism"."""

    words: str
    holds: Condition


@dataclass(frozen=True)
class Requires:
    """A rule of the framework: a setting that is on needs values of other fields.

    A setting of a section that is left out is off; a needed field of such a section is null.

    Args:
        code: the error code.
        setting: the field, or several of which any one needs the others. The first is blamed first.
        needs: the values that other fields must have, all of them: a value, a tuple of values, or
            `AllowedValues`.
        why: the reason, as a clause without a full stop.
        example: lines of YAML that break this rule, and no other, in a legal scenario.
        off: the values of the setting that need nothing; its default, unless given.
        given: the scenarios to which the rule applies; all by default.
        needs_first: true suggests values of the needed fields before values that are off.
    """

    code: str
    setting: str | tuple[str, ...]
    needs: Mapping[str, object]
    why: str
    example: str
    off: object = MISSING
    given: Given | None = None
    needs_first: bool = False

    @functools.cached_property
    def settings(self) -> dict[str, AllowedValues]:
        """The values of each setting that need nothing."""
        return values_that_are_off(self.setting, self.off)

    @functools.cached_property
    def allowed(self) -> dict[str, AllowedValues]:
        """The values that each needed field must have."""
        return {field: as_allowed(values) for field, values in self.needs.items()}

    @property
    def reason(self) -> str:
        """Why the rule exists."""
        return self.why

    @property
    def what(self) -> str:
        """What is wrong, without the values of a scenario."""
        on, missing = (
            listed([f"{field} {values.broken}" for field, values in part.items()], "or")
            for part in (self.settings, self.allowed)
        )
        return f"{where(self.given)}{on} while {missing}."

    @property
    def fix(self) -> str:
        """How to fix it, without the values of a scenario."""
        ways = [steps_to(self.settings), steps_to(self.allowed)]
        return sentence_of([*reversed(ways)] if self.needs_first else ways)

    @functools.cached_property
    def check(self) -> Callable[[Scenario], Violation | None]:
        """The function that returns the violation by a scenario, or None."""
        settings = [(value_getter(name), off.has) for name, off in self.settings.items()]
        needs = [(value_getter(field), values.has) for field, values in self.allowed.items()]
        applies = self.given.holds if self.given else None

        def violation_of(scenario: Scenario) -> Violation | None:
            """Return the violation, as soon as a setting is on and a need is not there."""
            for value_of, is_off in settings:
                value = value_of(scenario)
                if not is_off(value) and value is not MISSING:
                    break
            else:
                return None
            for value_of, is_allowed in needs:
                value = value_of(scenario)
                if not is_allowed(None if value is MISSING else value):
                    break
            else:
                return None
            return self._violation(scenario) if applies is None or applies(scenario) else None

        return violation_of

    def _violation(self, scenario: Scenario) -> Violation:
        """Return the violation, with the values of the scenario."""
        on = settings_on(self.settings, scenario)
        message = f"{broken_in_words(on, scenario)} while {broken_in_words(self.allowed, scenario)}"
        ways = (self.allowed | on) if self.needs_first else (on | self.allowed)
        near = {field: values_near(values, scenario) for field, values in ways.items()}
        return Violation(message, near, (*on, *self.allowed))


def values_that_are_off(setting: str | tuple[str, ...], off: object) -> dict[str, AllowedValues]:
    """Return the values of each setting that are `off`: its default if that is `MISSING`.

    The default of a field that the software stack sets is what holds if no stack does.
    """
    names = (setting,) if isinstance(setting, str) else setting
    if off is not MISSING:
        return dict.fromkeys(names, as_allowed(off))
    return {name: one_of(_off_by_default(name)) for name in names}


def settings_on(
    settings: Mapping[str, AllowedValues], scenario: Scenario
) -> dict[str, AllowedValues]:
    """Return the settings that are on in a scenario, each with its values that are off."""
    return {
        name: off
        for name, off in settings.items()
        if (value := value_getter(name)(scenario)) is not MISSING and value not in off
    }


def where(scenarios: Given | None) -> str:
    """Return the beginning of a sentence about the scenarios to which a row applies."""
    return f"With {scenarios.words}, " if scenarios else ""


def _off_by_default(field: str) -> object:
    default = default_of(field)
    if field not in STACK_DEFAULTS:
        return default
    return DEFAULT_FACTS.get(STACK_DEFAULTS[field].entry, default)


def default_of(field: str) -> object:
    """Return the default of a field of a scenario, by its dotted name."""
    section: Any = Scenario
    *path, name = _python_path(field).split(".")
    for part in path:
        section = section_of(section, part)
    return section.model_fields[name].get_default(call_default_factory=True)


def _python_path(field: str) -> str:
    """Return the attribute of a field, whose name in files may be a word of Python."""
    section: Any = Scenario
    *path, name = field.split(".")
    names = []
    for part in path:
        names.append(_python_name(section, part))
        section = section_of(section, names[-1])
    return ".".join([*names, _python_name(section, name)])


def _python_name(section: type[BaseModel], name: str) -> str:
    return next(inner for inner in section.model_fields if name_in_files(section, inner) == name)


@functools.cache
def value_getter(field: str) -> Callable[[Scenario], Any]:
    """Return a function that reads a field; what the software stack decides is resolved."""
    if field in STACK_DEFAULTS:
        return attrgetter(STACK_DEFAULTS[field].resolved)
    section, _, name = field.rpartition(".")
    if section == "software" and name != "stack":
        is_kernel = name in (kernel.name for kernel in fields(Kernels))
        return attrgetter(f"facts.kernels.{name}" if is_kernel else f"facts.{name}")
    if "." not in section:
        return attrgetter(_python_path(field))
    section_in, of_section = attrgetter(section), attrgetter(name)

    def read(scenario: Scenario) -> object:
        """Return the value, or the marker of a section that is left out."""
        inner = section_in(scenario)
        return MISSING if inner is None else of_section(inner)

    return read


def broken_in_words(allowed: Mapping[str, AllowedValues], scenario: Scenario) -> str:
    """Return the fields whose values are not allowed, each with its value."""
    read = {field: value_getter(field)(scenario) for field in allowed}
    values = {field: None if value is MISSING else value for field, value in read.items()}
    words = [
        f"{field} {allowed[field].broken_by(value)}"
        for field, value in values.items()
        if value not in allowed[field]
    ]
    return listed(words, "and")


def values_in_words(names: Iterable[str], scenario: Scenario) -> str:
    """Return fields with their values: "schedule is gpipe and parallelism.pipeline is 4"."""
    read = {name: value_getter(name)(scenario) for name in names}
    return listed(
        [f"{name} is {shown(value)}" for name, value in read.items() if value is not MISSING],
        "and",
    )


def values_near(values: AllowedValues, scenario: Scenario) -> Iterable[object]:
    """Return the values to suggest; a function of the scenario may yield some not allowed."""
    if not callable(values.near):
        return values.near
    return (value for value in values.near(scenario) if value in values)


def steps_to(allowed: Mapping[str, AllowedValues]) -> dict[str, list[str]]:
    """Return what to do so that every field is allowed: the objects of each verb."""
    steps: dict[str, list[str]] = {}
    for field, values in allowed.items():
        verb = {"": "add", "to null": "remove"}.get(values.remedy, "set")
        is_set = verb == "set"
        steps.setdefault(verb, []).append(f"{field} {values.remedy}" if is_set else field)
    return steps


def steps_near(near: Mapping[str, Values]) -> list[dict[str, list[str]]]:
    """Return what to do for each field with values to suggest, as alternatives."""
    ways: list[dict[str, list[str]]] = []
    for field, values in near.items():
        listed_values = [] if callable(values) else [*values]
        if callable(values):
            ways.append({"change": [field]})
        elif listed_values and all(value in (None, LEFT_OUT) for value in listed_values):
            ways.append({"remove": [field]})
        elif listed_values:
            ways.append({"set": [f"{field} to {either(listed_values)}"]})
    return ways


def sentence_of(ways: Sequence[Mapping[str, list[str]]]) -> str:
    """Return alternatives as a sentence; longer ones are separated by semicolons."""
    texts = [
        ", and ".join(f"{verb} {listed(objects, 'and')}" for verb, objects in steps.items())
        for steps in ways
    ]
    is_short = all(len(objects) == 1 for steps in ways for objects in steps.values())
    text = (", or " if is_short else "; or ").join(texts)
    return f"{text[0].upper()}{text[1:]}."
