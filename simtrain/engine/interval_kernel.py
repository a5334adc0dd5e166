"""Sets of moments for compiled code: the same sums as `intervals` makes, on arrays [n, 2]."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def intervals_of(tasks, start_s, end_s):
    """When tasks that follow each other run, those that take no time left out."""
    intervals = np.empty((len(tasks), 2))
    number = 0
    for task in tasks:
        if end_s[task] - start_s[task] > 0:
            intervals[number, 0] = start_s[task]
            intervals[number, 1] = end_s[task]
            number += 1
    return intervals[:number]


@njit(cache=True)
def merged(first, second):
    """The moments of both, each by start, as intervals that do not touch."""
    union = np.empty((len(first) + len(second), 2))
    number = 0
    i = 0
    j = 0
    while i < len(first) or j < len(second):
        if j == len(second) or (i < len(first) and first[i, 0] <= second[j, 0]):
            start_s, end_s = first[i]
            i += 1
        else:
            start_s, end_s = second[j]
            j += 1
        if number and start_s <= union[number - 1, 1]:
            union[number - 1, 1] = max(union[number - 1, 1], end_s)
        else:
            union[number, 0] = start_s
            union[number, 1] = end_s
            number += 1
    return union[:number]


@njit(cache=True)
def common_s(first, second):
    """Seconds that lie in both; each is by start and free of overlaps."""
    total_s = 0.0
    i = 0
    j = 0
    while i < len(first) and j < len(second):
        low = max(first[i, 0], second[j, 0])
        high = min(first[i, 1], second[j, 1])
        total_s += max(0.0, high - low)
        if first[i, 1] < second[j, 1]:
            i += 1
        else:
            j += 1
    return total_s


@njit(cache=True)
def outside_s(intervals, busy):
    """Seconds of `intervals` that lie in none of `busy`; each is by start and free of overlaps."""
    total_s = 0.0
    first = 0
    for place in range(len(intervals)):
        start_s = intervals[place, 0]
        end_s = intervals[place, 1]
        while first < len(busy) and busy[first, 1] <= start_s:
            first += 1
        at = first
        while at < len(busy) and busy[at, 0] < end_s:
            total_s += max(0.0, busy[at, 0] - start_s)
            start_s = busy[at, 1]
            at += 1
        total_s += max(0.0, end_s - start_s)
    return total_s
