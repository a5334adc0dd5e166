"""Find runs of a sequence that repeat, such as the ops of equal layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_PERIODS = 64
_LEAST_LENGTH = 2


@dataclass(frozen=True, slots=True)
class Repeat:
    """Places `first` to `first + length` of a sequence, which occur `count` times in a row."""

    first: int
    length: int
    count: int


def repeats_of(values: Sequence[Hashable]) -> list[Repeat]:
    """Cut a sequence into parts, each repeated some number of times; together they are all of it.

    The part that saves most is found first, then those before and after it. Periods that are tried
    are the most frequent distances between neighbours that are equal.
    """
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
    return [*_cut(codes, 0)]


def _cut(codes: NDArray[np.int64], offset: int) -> list[Repeat]:
    parts: list[Repeat] = []
    waiting = [(codes, offset)]
    while waiting:
        piece, first = waiting.pop()
        best = _best(piece)
        if best is None:
            if len(piece):
                parts.append(Repeat(first, len(piece), 1))
            continue
        end = best.first + best.length * best.count
        parts.append(Repeat(first + best.first, best.length, best.count))
        waiting.append((piece[: best.first], first))
        waiting.append((piece[end:], first + end))
    return sorted(parts, key=lambda part: part.first)


def _best(codes: NDArray[np.int64]) -> Repeat | None:
    """Return the repeat that saves most elements; None if none does."""
    latest: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for place, code in enumerate(codes.tolist()):
        if code in latest:
            distances[place - latest[code]] += 1
        latest[code] = place
    best, saved = None, _LEAST_LENGTH - 1
    periods = [period for period, _ in distances.most_common(_MOST_PERIODS)]
    for period in sorted(periods):
        is_equal = np.concatenate([[False], codes[period:] == codes[:-period], [False]])
        changes = np.flatnonzero(is_equal[1:] != is_equal[:-1])
        for start, end in zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True):
            extra = (end - start) // period
            if extra and extra * period > saved:
                best, saved = Repeat(start, period, extra + 1), extra * period
    return best
