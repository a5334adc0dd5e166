"""Legal values near an illegal one, the nearest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isqrt

from simtrain.scenario.section import MAX_COUNT

# Multiples to try on each side of a value.
_REACH = 16


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def near_divisors(value: int, of: int, at_least: int = 1, beyond: int = 0) -> Iterator[int]:
    """Yield `beyond` + d for the divisors d of `of`, from `at_least` up, nearest `value` first."""
    sums = (beyond + one for one in divisors(of))
    yield from _nearest_first(value, (one for one in sums if one >= at_least))


def near_multiples(value: int, step: int, start: int = 0) -> Iterator[int]:
    """Yield `start` plus positive multiples of `step`, nearest `value` first.

    A negative `step` yields numbers below `start`.
    """
    factor = (value - start) // step
    factors = range(max(1, factor - _REACH), max(1, factor) + _REACH + 2)
    yield from _nearest_first(value, (start + one * step for one in factors))


def _nearest_first(value: int, candidates: Iterable[int]) -> list[int]:
    legal = (one for one in candidates if 1 <= one <= MAX_COUNT and one != value)
    return sorted(legal, key=lambda one: (abs(one - value), one))
