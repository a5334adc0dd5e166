"""How many ranks or nodes a token reaches, on average, if routing is uniform.

A router chooses groups of experts uniformly, and then top_k different experts of these groups
uniformly. Without limited groups, all experts are one group.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """A choice of `top_k` of `num` experts, out of `chosen` of `groups` equal groups."""

    num: int
    top_k: int
    groups: int = 1
    chosen: int = 1

    @property
    def group_size(self) -> int:
        """Experts of a group."""
        return self.num // self.groups


@functools.lru_cache(maxsize=1024)
def expected_places(choice: RandomChoice, places: int) -> float:
    """Return the expected number of different places of a token's experts.

    Args:
        choice: how the experts are chosen.
        places: ranks or nodes, each with an equal number of neighbouring experts. A number that
            does not divide the experts leaves the last place with fewer.

    A place is missed if none of its experts is chosen. With x of its experts in chosen groups, that
    is C(n - x, k) of C(n, k) choices, n being all experts of the chosen groups.
    """
    size = -(-choice.num // places)
    starts = range(0, choice.num, size)
    misses = (_chance_to_miss(choice, start, min(start + size, choice.num)) for start in starts)
    return len(starts) - math.fsum(misses)


def _chance_to_miss(choice: RandomChoice, start: int, end: int) -> float:
    """Return the chance that none of the experts from `start` to `end` is chosen."""
    group, k = choice.group_size, choice.top_k
    overlaps = [
        min(end, first + group) - max(start, first)
        for first in range(start // group * group, end, group)
    ]
    candidates = choice.chosen * group
    others = choice.groups - len(overlaps)
    missing = sum(
        ways * math.comb(others, choice.chosen - groups) * math.comb(candidates - experts, k)
        for (groups, experts), ways in _subsets(overlaps).items()
        if groups <= choice.chosen
    )
    return missing / (math.comb(choice.groups, choice.chosen) * math.comb(candidates, k))


def _subsets(overlaps: Sequence[int]) -> Counter[tuple[int, int]]:
    """Return the number of subsets of groups, by their number and the sum of their overlaps."""
    ways = Counter({(0, 0): 1})
    for overlap in overlaps:
        ways += Counter({(n + 1, x + overlap): count for (n, x), count in ways.items()})
    return ways
