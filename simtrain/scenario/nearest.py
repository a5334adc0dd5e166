"""Values to write instead: for a field of a scenario, the nearest ones that a rule accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isqrt

from simtrain.errors import InputError
from simtrain.scenario.schema import MAX_COUNT, Scenario

# How many multiples to look at on each side of a value.
_REACH = 16


@dataclass(frozen=True, slots=True)
class Fix:
    """A value for the field at a dotted name in the file, such as batch.global."""

    field: str
    value: int | bool | str | None

    @property
    def written(self) -> str:
        """The value as YAML writes it."""
        if self.value is None:
            return "null"
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)

    def apply(self, scenario: Scenario) -> Scenario | None:
        """The scenario with this value, its defaults derived anew; None if it cannot be had."""
        try:
            return scenario.replace({self.field: self.value})
        except InputError:
            return None


def multiples(field: str, value: int, of: int, beyond: int = 0) -> Iterator[Fix]:
    """What exceeds `beyond` by positive multiples of `of`, the nearest to `value` first."""
    factors = _factors_around((value - beyond) // of)
    yield from _nearest_first(field, value, (beyond + factor * of for factor in factors))


def leaving_multiples(field: str, value: int, of: int, total: int) -> Iterator[Fix]:
    """What leaves positive multiples of `of` of a `total`, the nearest to `value` first."""
    factors = _factors_around((total - value) // of)
    yield from _nearest_first(field, value, (total - factor * of for factor in factors))


def _factors_around(factor: int) -> range:
    return range(max(1, factor - _REACH), max(1, factor) + _REACH + 2)


def divisors(field: str, value: int, of: int, at_least: int = 1, beyond: int = 0) -> Iterator[Fix]:
    """What exceeds `beyond` by divisors of `of`, from `at_least` up, the nearest first."""
    small = [one for one in range(1, isqrt(of) + 1) if of % one == 0]
    every = {beyond + one for one in (*small, *(of // one for one in small))}
    yield from _nearest_first(field, value, (one for one in every if one >= at_least))


def _nearest_first(field: str, value: int, candidates: Iterable[int]) -> Iterator[Fix]:
    legal = (one for one in candidates if 1 <= one <= MAX_COUNT and one != value)
    ordered = sorted(legal, key=lambda one: (abs(one - value), one))
    return (Fix(field, one) for one in ordered)
