"""Values to write instead: for a field of a scenario, the nearest ones that a rule accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Any

from pydantic import ValidationError

from simtrain.scenario.schema import MAX_COUNT, Scenario

# How many multiples to look at on each side of a value.
_REACH = 16


@dataclass(frozen=True, slots=True)
class Fix:
    """A value for the field at a dotted name in the file, such as batch.global."""

    field: str
    value: int | bool | str

    @property
    def written(self) -> str:
        """The value as YAML writes it."""
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)

    def apply(self, scenario: Scenario) -> Scenario | None:
        """The scenario with this value, its defaults derived anew; None if it cannot be had."""
        data: dict[str, Any] = scenario.model_dump(by_alias=True, exclude_unset=True)
        *sections, name = self.field.split(".")
        inside = data
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[name] = self.value
        try:
            return Scenario.model_validate(data)
        except ValidationError:
            return None


def multiples(field: str, value: int, of: int) -> Iterator[Fix]:
    """Positive multiples of `of`, the nearest to `value` first."""
    below = value // of
    factors = range(max(1, below - _REACH), below + _REACH + 2)
    yield from _nearest_first(field, value, (factor * of for factor in factors))


def divisors(field: str, value: int, of: int, at_least: int = 1) -> Iterator[Fix]:
    """Divisors of `of` from `at_least` up, the nearest to `value` first."""
    small = [one for one in range(1, isqrt(of) + 1) if of % one == 0]
    every = {*small, *(of // one for one in small)}
    yield from _nearest_first(field, value, (one for one in every if one >= at_least))


def _nearest_first(field: str, value: int, candidates: Iterable[int]) -> Iterator[Fix]:
    legal = (one for one in candidates if 1 <= one <= MAX_COUNT and one != value)
    ordered = sorted(legal, key=lambda one: (abs(one - value), one))
    return (Fix(field, one) for one in ordered)
