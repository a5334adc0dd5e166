"""Which points of a space are legal, found by cutting the tree of all of them early.

The rules are those of `simtrain.scenario`. What a rule reads says at which level of the tree its
verdict is known, and that it need be asked only once for the same values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from simtrain.scenario import RULES, Rule
from simtrain.search.space import Point, Prefix, Space

_READS: dict[str, tuple[str, ...]] = {
    "E301": ("tensor",),
    "E302": (),
    "E303": ("tensor",),
    "E304": ("tensor",),
    "E305": ("pipeline", "interleave"),
    "E306": ("data", "micro"),
    "E307": ("tensor", "sequence_parallel"),
    "E308": ("tensor", "sequence_parallel"),
    "E309": ("pipeline", "interleave"),
    "E310": ("pipeline", "interleave"),
    "E311": ("pipeline", "data", "interleave", "micro"),
    "E312": ("interleave",),
    "E313": ("interleave",),
    "E314": ("sequence_parallel",),
    "E315": (),
    "E316": ("interleave",),
    "E318": ("recompute",),
    "E319": ("pipeline", "interleave", "recompute"),
    "E320": ("tensor", "recompute"),
    "E321": ("sequence_parallel", "recompute"),
    "E322": ("recompute",),
    "E323": ("pipeline", "recompute"),
    "E324": ("pipeline", "data", "interleave", "micro", "recompute"),
    "E325": ("pipeline", "zero_stage"),
    "E326": ("data", "zero_stage"),
    "E327": ("pipeline",),
    "E328": ("pipeline", "interleave"),
    "E330": (),
    "E332": ("pipeline", "data", "interleave", "micro"),
}
"""The coordinates that a rule reads; one that is not listed may read all of them."""
OF_THE_BASE = frozenset(code for code, reads in _READS.items() if not reads)
"""The rules that a base breaks at every point, or at none."""


@dataclass(frozen=True, slots=True)
class Legal:
    """The legal points of a space, in its order, and how many of the others each rule removed.

    A point that breaks several rules counts to the first that was asked.
    """

    points: tuple[Point, ...]
    removed: Counter[str]
    num_configurations: int


def legal_points(space: Space) -> Legal:
    """All legal points of a space."""
    levels = space.levels()
    sizes = [len(choices) for choices in levels]
    below = [math.prod(sizes[level + 1 :]) for level in range(len(sizes))]
    asked = _by_level(space, levels)
    points: list[Point] = []
    removed: Counter[str] = Counter()

    def walk(prefix: Prefix, level: int) -> None:
        if level == len(levels):
            points.append(Point(*prefix))
            return
        for choice in levels[level]:
            longer = prefix + choice
            broken = next((one.rule.code for one in asked[level] if one.breaks(longer)), None)
            if broken:
                removed[broken] += below[level]
            else:
                walk(longer, level + 1)

    walk((), 0)
    return Legal(tuple(points), removed, math.prod(sizes))


@dataclass(slots=True)
class _Asked:
    """A rule, asked once for each different value of what it reads."""

    rule: Rule
    space: Space
    read: Callable[[Prefix], Any]
    _known: dict[Any, bool] = field(default_factory=dict)

    def breaks(self, prefix: Prefix) -> bool:
        values = self.read(prefix)
        if values not in self._known:
            # What comes after the prefix is the base's: the rule does not read it.
            rest = Point.of(self.space.base)[len(prefix) :]
            scenario = self.space.scenario(Point(*prefix, *rest))
            self._known[values] = self.rule.check(scenario) is not None
        return self._known[values]


def _by_level(space: Space, levels: Sequence[Sequence[Prefix]]) -> list[list[_Asked]]:
    """For each level the rules whose coordinates are all known there, and not before."""
    known = 0
    asked: list[list[_Asked]] = []
    rules = [(rule, _coordinates(rule)) for rule in RULES]
    for choices in levels:
        before, known = known, known + (len(choices[0]) if choices else 0)
        first = not asked
        asked.append(
            [
                _Asked(rule, space, _reader(read))
                for rule, read in rules
                if (first or max(read, default=-1) >= before) and max(read, default=-1) < known
            ]
        )
    return asked


def _coordinates(rule: Rule) -> list[int]:
    names = _READS.get(rule.code, Point._fields)
    return [Point._fields.index(name) for name in names]


def _reader(coordinates: Sequence[int]) -> Callable[[Prefix], Any]:
    return itemgetter(*coordinates) if coordinates else lambda prefix: ()
