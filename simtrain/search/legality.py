"""Which points of a space are legal, found by cutting the tree of all of them early.

The rules are those of `simtrain.scenario`. A rule is checked as soon as the coordinates that it
reads are chosen, and once for each different combination of their values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import RULES, Rule
from simtrain.scenario.userbuffer_rules import userbuffer_node_rule
from simtrain.search.space import Point, Prefix, Space
from simtrain.search.tracing import Tracer


@dataclass(frozen=True, slots=True)
class Legal:
    """The legal points of a space, in its order, and how many of the others each rule removed.

    A point that breaks several rules counts to the first that was asked.
    """

    points: tuple[Point, ...]
    removed: Counter[str]
    num_configurations: int


def rules_of_base(space: Space) -> list[Rule]:
    """The rules that read no coordinate: every point of a space breaks one of them, or none."""
    tracer = Tracer(space)
    return [rule for rule in RULES if not tracer.run(rule)[1]]


def rules_on(profile: HardwareProfile) -> tuple[Rule, ...]:
    """The rules of a cluster that some points of a space break and others keep.

    Its other rules are about the base, and about numbers of GPUs.
    """
    return (userbuffer_node_rule(profile.cluster.nvlink_gpus),)


def legal_points(space: Space, of_cluster: Sequence[Rule] = ()) -> Legal:
    """All points of a space that break no rule of the framework, nor of a cluster."""
    levels = space.levels()
    sizes = [len(choices) for choices in levels]
    below = [math.prod(sizes[level + 1 :]) for level in range(len(sizes))]
    points: list[Point] = []
    removed: Counter[str] = Counter()

    def walk(prefix: Prefix, level: int, open_rules: list[tuple[_DecisionTree, _Step]]) -> None:
        if level == len(levels):
            points.append(Point(*prefix))
            return
        for choice in levels[level]:
            longer = prefix + choice
            still_open = []
            for tree, step in open_rules:
                if step.coordinate < len(longer):
                    step = tree.follow(step, longer)
                if step is _BROKEN:
                    removed[tree.rule.code] += below[level]
                    break
                if step is not _KEPT:
                    still_open.append((tree, step))
            else:
                walk(longer, level + 1, still_open)

    tracer = Tracer(space)
    trees = [_DecisionTree(rule, tracer) for rule in (*RULES, *of_cluster)]
    walk((), 0, [(tree, tree.root) for tree in trees])
    return Legal(tuple(points), removed, math.prod(sizes))


@dataclass(slots=True)
class _Step:
    """A rule reads a coordinate; what it does next depends on the value."""

    coordinate: int
    next: dict[Any, _Step] = field(default_factory=dict)


_BROKEN, _KEPT = _Step(len(Point._fields)), _Step(len(Point._fields))
"""The last steps of a rule, which read nothing."""


class _DecisionTree:
    """What a rule reads and then returns. Each run of the rule adds a branch.

    A rule is a pure function: what it reads next depends on the values it has read and on nothing
    else.
    """

    def __init__(self, rule: Rule, tracer: Tracer) -> None:
        self.rule = rule
        self._tracer = tracer
        self.root = self._run(())[0]

    def follow(self, step: _Step, prefix: Prefix) -> _Step:
        """The step after all reads that the prefix of a point answers."""
        while step.coordinate < len(prefix):
            following = step.next.get(prefix[step.coordinate])
            if following is None:
                following = self._add_branch(step, prefix)
            step = following
        return step

    def _add_branch(self, step: _Step, prefix: Prefix) -> _Step:
        steps = self._run(prefix)
        place = [one.coordinate for one in steps].index(step.coordinate)
        for following in steps[place + 1 :]:
            step.next[prefix[step.coordinate]] = following
            step = following
            # The values beyond the prefix are the base's: what follows from them is not known.
            if step.coordinate >= len(prefix):
                break
        return steps[place + 1]

    def _run(self, prefix: Prefix) -> list[_Step]:
        is_broken, reads = self._tracer.run(self.rule, prefix)
        return [*map(_Step, reads), _BROKEN if is_broken else _KEPT]
