"""Values to write instead of an illegal one: the nearest legal ones, from near to far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isqrt

from simtrain.scenario.model import MAX_COUNT

# How many multiples to look at on each side of a value.
_REACH = 16


def divisors(number: int) -> list[int]:
    """The divisors of a number, ascending."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def near_divisors(value: int, of: int, at_least: int = 1, beyond: int = 0) -> Iterator[int]:
    """Sums of `beyond` and a divisor of `of`, from `at_least` up, the nearest to `value` first."""
    sums = (beyond + one for one in divisors(of))
    yield from _nearest_first(value, (one for one in sums if one >= at_least))


def near_multiples(value: int, step: int, start: int = 0) -> Iterator[int]:
    """Sums of `start` and a positive multiple of `step`, the nearest to `value` first.

    A negative `step` gives the numbers below `start`.
    """
    factor = (value - start) // step
    factors = range(max(1, factor - _REACH), max(1, factor) + _REACH + 2)
    yield from _nearest_first(value, (start + one * step for one in factors))


def _nearest_first(value: int, candidates: Iterable[int]) -> list[int]:
    legal = (one for one in candidates if 1 <= one <= MAX_COUNT and one != value)
    return sorted(legal, key=lambda one: (abs(one - value), one))
