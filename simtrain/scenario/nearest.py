"""Divisors and multiples of numbers near a value, the nearest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isqrt

from simtrain.scenario.section import MAX_COUNT

_REACH = 16
"""Multiples to try on each side of a value."""


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def near_divisors(value: int, of: int, at_least: int = 1) -> Iterator[int]:
    """Yield the divisors of `of` from `at_least` up, the nearest to `value` first."""
    yield from _nearest_first(value, (each for each in divisors(of) if each >= at_least))


def near_multiples(value: int, step: int) -> Iterator[int]:
    """Yield positive multiples of `step`, the nearest to `value` first."""
    factor = value // step
    factors = range(max(1, factor - _REACH), max(1, factor) + _REACH + 2)
    yield from _nearest_first(value, (factor * step for factor in factors))


def _nearest_first(value: int, candidates: Iterable[int]) -> list[int]:
    legal = (number for number in candidates if 1 <= number <= MAX_COUNT and number != value)
    return sorted(legal, key=lambda number: (abs(number - value), number))
