"""The values that a rule allows a field: how a check, an error and an explanation read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from simtrain.base.strict_yaml import as_scalar
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import Section

Values = Iterable[object] | Callable[[Scenario], Iterable[object]]
"""Values to try for a field, or a function of the scenario that returns them."""


class AllowedValues:
    """A set of values of one field.

    Args:
        has: whether the set has a value.
        near: values of the set to suggest, the nearest first.
    """

    def __init__(self, has: Callable[[object], bool], near: Values) -> None:
        self.has, self.near = has, near

    def __contains__(self, value: object) -> bool:
        return self.has(value)

    @property
    def broken(self) -> str:
        """What a field outside of the set is, such as "is not fp8"."""
        raise NotImplementedError

    @property
    def remedy(self) -> str:
        """How a field gets into the set: "to fp8" sets it, "" sets it to any value."""
        raise NotImplementedError

    def broken_by(self, value: object) -> str:
        """What a field with this value is, such as "is bf16"."""
        return f"is {'not set' if value is None else shown(value)}"


class OneOf(AllowedValues):
    """These values; the values to suggest are `near`, by default all of them."""

    def __init__(self, *values: object, near: Values | None = None) -> None:
        super().__init__(values.__contains__, values if near is None else near)
        self.values = values

    @property
    def broken(self) -> str:
        """What a field with another value is."""
        if self.values == (None,):
            return "is set"
        (first, *others) = self.values
        if isinstance(first, bool) and not others:
            return f"is {as_scalar(not first)}"
        return f"is not {either(self.values)}"

    @property
    def remedy(self) -> str:
        """The values to set."""
        return f"to {either(self.values)}"


class AnyBut(AllowedValues):
    """All values but these."""

    def __init__(self, *values: object, near: Values) -> None:
        super().__init__(lambda value: value not in values, near)
        self.values = values

    @property
    def broken(self) -> str:
        """What a field with one of the values is."""
        return "is not set" if self.values == (None,) else f"is {either(self.values)}"

    @property
    def remedy(self) -> str:
        """The values to set."""
        return "" if callable(self.near) or not self.near else f"to {either(self.near)}"


class AtLeast(AllowedValues):
    """Numbers from `least` on."""

    def __init__(self, least: int, near: Values) -> None:
        super().__init__(lambda value: isinstance(value, int) and value >= least, near)
        self.least = least

    @property
    def broken(self) -> str:
        """What a field with a smaller number is."""
        return f"is below {self.least}"

    @property
    def remedy(self) -> str:
        """The numbers to set."""
        return f"to {self.least} or more"


class DescribedBy(AllowedValues):
    """Clusters whose profile has a section: none, if a rule applies to a profile without it."""

    def __init__(self, section: str) -> None:
        super().__init__(lambda value: False, near=())
        self.section = section

    @property
    def broken(self) -> str:
        """What another cluster has."""
        return f"has a profile without a section {self.section}"

    @property
    def remedy(self) -> str:
        """The clusters to set."""
        return f"to one whose profile has a section {self.section}"

    def broken_by(self, value: object) -> str:
        """What this cluster has."""
        return f"is {value}, whose profile has no section {self.section}"


SET = AnyBut(None, near=())
"""Any value, of a field or a section that can be left out; none of them is nearer than others."""


def as_allowed(values: object) -> AllowedValues:
    """Return the set of one value, or of the values of a tuple; a set remains what it is."""
    if isinstance(values, AllowedValues):
        return values
    return OneOf(*values) if isinstance(values, tuple) else OneOf(values)


def either(values: Iterable[object]) -> str:
    """Return the values as an alternative: "a, b or c"."""
    return listed([as_scalar(value) for value in values], "or")


def listed(texts: Sequence[str], last: str) -> str:
    """Return texts as a list with a word before the last one: "a", "a and b", "a, b and c"."""
    return f" {last} ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def shown(value: object) -> str:
    """Format a value in a message; a section is "set"."""
    return "set" if isinstance(value, Section) else as_scalar(value)
