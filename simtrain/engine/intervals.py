"""Sets of moments: intervals of seconds, by start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as intervals that do not touch."""
    apart: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if apart and start_s <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], end_s)
        else:
            apart.append((start_s, end_s))
    return apart


def common_s(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Seconds that lie in both; each list is sorted and free of overlaps."""
    total_s = 0.0
    i = j = 0
    while i < len(first) and j < len(second):
        low = max(first[i][0], second[j][0])
        high = min(first[i][1], second[j][1])
        total_s += max(0.0, high - low)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total_s


def outside_s(intervals: Iterable[Interval], busy: Sequence[Interval]) -> float:
    """Seconds of `intervals` that lie in none of `busy`; each is sorted and free of overlaps."""
    total_s = 0.0
    first = 0
    for start_s, end_s in intervals:
        while first < len(busy) and busy[first][1] <= start_s:
            first += 1
        at = first
        while at < len(busy) and busy[at][0] < end_s:
            total_s += max(0.0, busy[at][0] - start_s)
            start_s = busy[at][1]
            at += 1
        total_s += max(0.0, end_s - start_s)
    return total_s
