"""The values that a rule allows a field: how a check, an error and an explanation read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simtrain.base.strict_yaml import as_scalar
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import Section

Values = Iterable[object] | Callable[[Scenario], Iterable[object]]
"""Values to try for a field, or a function of the scenario that returns them."""


@dataclass(frozen=True)
class AllowedValues:
    """A set of values of one field.

    Args:
        has: whether the set has a value.
        near: values of the set to suggest, the nearest first.
        broken: what a field with another value is, such as "is not fp8".
        remedy: how a field gets into the set: "to fp8" sets it, "" adds any value.
        after_value: the words after another value in an error.
    """

    has: Callable[[object], bool]
    near: Values
    broken: str
    remedy: str
    after_value: str = ""

    def __contains__(self, value: object) -> bool:
        return self.has(value)

    def broken_by(self, value: object) -> str:
        """Return what a field with this value is, such as "is bf16"."""
        return f"is {shown(value)}{self.after_value}"


def one_of(*values: object, near: Values | None = None) -> AllowedValues:
    """Return the set of these values; the values to suggest are `near`, by default all of them."""
    broken = f"is not {either(values)}"
    if values == (None,):
        broken = "is set"
    elif len(values) == 1 and isinstance(values[0], bool):
        broken = f"is {as_scalar(not values[0])}"
    has = values.__contains__  # in C: searches check rows millions of times
    return AllowedValues(has, values if near is None else near, broken, f"to {either(values)}")


def any_but(*values: object, near: Iterable[object]) -> AllowedValues:
    """Return the set of all values but these."""
    return AllowedValues(
        lambda value: value not in values, near, f"is {either(values)}", f"to {either(near)}"
    )


def at_least(least: int, near: Values) -> AllowedValues:
    """Return the set of numbers from `least` on."""
    return AllowedValues(
        lambda value: isinstance(value, int) and value >= least,
        near,
        f"is below {least}",
        f"to {least} or more",
    )


def described_by(section: str) -> AllowedValues:
    """Return the set of clusters whose profile has a section, for a rule of the other profiles."""
    return AllowedValues(
        lambda value: False,
        (),
        f"has a profile without a section {section}",
        f"to one whose profile has a section {section}",
        f", whose profile has no section {section}",
    )


SET = AllowedValues(lambda value: value is not None, (), "is not set", "")
"""Any value, of a field or a section that can be left out; none of them is nearer than others."""


def as_allowed(values: object) -> AllowedValues:
    """Return the set of one value, or of the values of a tuple; a set remains what it is."""
    if isinstance(values, AllowedValues):
        return values
    return one_of(*values) if isinstance(values, tuple) else one_of(values)


def either(values: Iterable[object]) -> str:
    """Return the values as an alternative: "a, b or c"."""
    return listed([as_scalar(value) for value in values], "or")


def listed(texts: Sequence[str], last: str) -> str:
    """Return texts as a list with a word before the last one: "a", "a and b", "a, b and c"."""
    return f" {last} ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def shown(value: object) -> str:
    """Format a value in a message; a section is "set", and null "not set"."""
    if value is None:
        return "not set"
    return "set" if isinstance(value, Section) else as_scalar(value)
