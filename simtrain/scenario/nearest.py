"""Legal values near an illegal one, the nearest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isqrt

from simtrain.scenario.section import MAX_COUNT

# Multiples to try on each side of a value.
_REACH = 16


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def near_divisors(value: int, of: int, at_least: int = 1, beyond: int = 0) -> Iterator[int]:
    """Yield `beyond` + d for the divisors d of `of`, from `at_least` up, nearest `value` first."""
    sums = (beyond + divisor for divisor in divisors(of))
    yield from _nearest_first(value, (number for number in sums if number >= at_least))


def near_multiples(value: int, step: int, start: int = 0) -> Iterator[int]:
    """Yield `start` plus positive multiples of `step`, nearest `value` first.

    A negative `step` yields numbers below `start`.
    """
    factor = (value - start) // step
    factors = range(max(1, factor - _REACH), max(1, factor) + _REACH + 2)
    yield from _nearest_first(value, (start + factor * step for factor in factors))


def _nearest_first(value: int, candidates: Iterable[int]) -> list[int]:
    legal = (number for number in candidates if 1 <= number <= MAX_COUNT and number != value)
    return sorted(legal, key=lambda number: (abs(number - value), number))
