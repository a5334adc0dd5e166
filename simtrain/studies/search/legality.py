"""Find the legal points of a space, and prune the tree of all points early.

The rules are those of `simtrain.scenario`. A rule is checked as soon as the coordinates that it
reads are chosen, and once for each different combination of their values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import RULES, Rule
from simtrain.scenario.combination_rules import NO_FUSED_ATTENTION, NO_HOST_LINK
from simtrain.scenario.expert_rules import dispatcher_rule
from simtrain.scenario.offload_rules import NO_DISKS, NO_HOST_COPIES, NO_NVME
from simtrain.scenario.precision_rules import products_rule
from simtrain.scenario.userbuffer_rules import userbuffer_node_rule
from simtrain.studies.search.rule_reads import RuleReads
from simtrain.studies.search.space import COORDINATES, Point, Prefix, Space

_NUM_FIRST = COORDINATES.index("micro")
"""Number of first coordinates; the last ones have the same choices after all of these."""


@dataclass(frozen=True, slots=True)
class LegalPoints:
    """The legal points of a space in its order, and the number of points that each rule removed.

    A point that breaks several rules counts for the first rule that was checked.

    Args:
        points: the legal layouts.
        removed: number of illegal layouts by the code of the rule.
        num_configurations: number of layouts, legal or not.
    """

    points: tuple[Point, ...]
    removed: Counter[str]
    num_configurations: int


def rules_of_base(space: Space) -> list[Rule]:
    """Select the rules that read no coordinate: all points of a space break them, or none does."""
    variants = [RuleReads(space.variant(settings)) for settings in space.all_settings]

    def is_of_base(rule: Rule) -> bool:
        outcomes = [reads.of(rule) for reads in variants]
        same = len({is_broken for is_broken, _ in outcomes}) == 1
        return same and not any(coordinates for _, coordinates in outcomes)

    return [*filter(is_of_base, RULES)]


def rules_on(profile: HardwareProfile) -> tuple[Rule, ...]:
    """Return the rules of a cluster that only some points of a space may break.

    The cluster's other rules concern the base and the number of GPUs.
    """
    of_kernels = products_rule(profile.product_types), dispatcher_rule(profile.dispatcher_names)
    absent = [] if profile.host_link else [NO_HOST_LINK, NO_HOST_COPIES]
    absent += [] if profile.nvme else [NO_NVME, NO_DISKS]
    absent += [] if profile.fused_attention else [NO_FUSED_ATTENTION]
    return userbuffer_node_rule(profile.cluster.nvlink_gpus), *of_kernels, *absent


def legal_points(space: Space, of_cluster: Sequence[Rule] = ()) -> LegalPoints:
    """Find all points of a space that break no rule of the framework and of the cluster."""
    points: list[Point] = []
    removed: Counter[str] = Counter()
    variants = [space.variant(settings) for settings in space.all_settings]
    for variant in variants:
        reads = RuleReads(variant)
        trees = [_DecisionTree(rule, reads) for rule in (*RULES, *of_cluster)]
        _Walk(variant, points, removed).add((), [(tree, tree.root) for tree in trees])
    num_configurations = sum(variant.num_points() for variant in variants)
    return LegalPoints(tuple(points), removed, num_configurations)


_Open = list[tuple["_DecisionTree", "_Node"]]
"""Rules that the first coordinates of a point do not decide, each with its next read."""


@dataclass
class _Ends:
    """The legal values of the last coordinates, and how many others each rule removes.

    Args:
        reads: the coordinates that rules read to find them.
    """

    legal: list[Prefix] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    reads: set[int] = field(default_factory=set)


@dataclass
class _Walk:
    """Walks the tree of a variant's points.

    The last coordinates have the same choices after all others. So their legal values follow from
    the state of the open rules and the coordinates that these read, and are listed once for each.
    """

    variant: Space
    points: list[Point]
    removed: Counter[str]
    _ends: dict[tuple[object, ...], dict[tuple[int, ...], dict[Prefix, _Ends]]] = field(
        default_factory=dict
    )
    """Ends by the state of the open rules, the coordinates that they read, and their values."""

    def add(self, prefix: Prefix, open_rules: _Open) -> None:
        """Add the legal points that begin with `prefix`."""
        if len(prefix) >= _NUM_FIRST:
            ends = self.ends(prefix, open_rules)
            self.removed.update(ends.removed)
            settings = (self.variant.settings,)
            self.points += (Point._make(prefix + end + settings) for end in ends.legal)
            return
        for choice in self.variant.choices(prefix):
            longer, above = prefix + choice, _Ends()
            still_open = self.follow(longer, open_rules, above)
            self.removed.update(above.removed)
            if still_open is not None:
                self.add(longer, still_open)

    def ends(self, prefix: Prefix, open_rules: _Open) -> _Ends:
        """Return the legal last coordinates after `prefix`."""
        state = len(prefix), *(node for _, node in open_rules)
        known = self._ends.setdefault(state, {})
        for reads, by_values in known.items():
            if ends := by_values.get(tuple(prefix[place] for place in reads)):
                return ends
        ends = self.new_ends(prefix, open_rules)
        reads = tuple(sorted(place for place in ends.reads if place < len(prefix)))
        known.setdefault(reads, {})[tuple(prefix[place] for place in reads)] = ends
        return ends

    def new_ends(self, prefix: Prefix, open_rules: _Open) -> _Ends:
        """List the legal last coordinates after `prefix`."""
        if len(prefix) == len(COORDINATES):
            return _Ends([()])
        all_ends = _Ends()
        for choice in self.variant.choices(prefix):
            longer = prefix + choice
            still_open = self.follow(longer, open_rules, all_ends)
            if still_open is not None:
                ends = self.ends(longer, still_open)
                all_ends.legal += (choice + end for end in ends.legal)
                all_ends.removed.update(ends.removed)
                all_ends.reads |= ends.reads
        return all_ends

    def follow(self, prefix: Prefix, open_rules: _Open, ends: _Ends) -> _Open | None:
        """Return the rules that `prefix` leaves open; None if it breaks one, which is counted."""
        still_open = []
        for tree, node in open_rules:
            if node.coordinate < len(prefix):
                node = tree.follow(node, prefix, ends.reads)
            if node is _BROKEN:
                ends.removed[tree.rule.code] += self.variant.num_points(prefix)
                return None
            if node is not _KEPT:
                still_open.append((tree, node))
        return still_open


@dataclass(slots=True, eq=False)
class _Node:
    """Node of a decision tree: a read coordinate, and the next node for each of its values."""

    coordinate: int
    next: dict[Any, _Node] = field(default_factory=dict)


_BROKEN, _KEPT = _Node(len(COORDINATES)), _Node(len(COORDINATES))
"""Leaves: the rule's outcome."""


class _DecisionTree:
    """Coordinates that a rule reads, as a decision tree. Each evaluation of the rule adds a branch.

    A rule is a pure function: its next read depends only on the values that it has read.
    """

    def __init__(self, rule: Rule, reads: RuleReads) -> None:
        self.rule = rule
        self._reads = reads
        self.root = self._run(())[0]

    def follow(self, step: _Node, prefix: Prefix, reads: set[int]) -> _Node:
        """Return the node after all reads that a prefix of a point determines; add the reads."""
        while step.coordinate < len(prefix):
            reads.add(step.coordinate)
            following = step.next.get(prefix[step.coordinate])
            if following is None:
                following = self._add_branch(step, prefix)
            step = following
        return step

    def _add_branch(self, step: _Node, prefix: Prefix) -> _Node:
        steps = self._run(prefix)
        place = [node.coordinate for node in steps].index(step.coordinate)
        for following in steps[place + 1 :]:
            step.next[prefix[step.coordinate]] = following
            step = following
            # Values beyond the prefix are the base's, so their branches do not hold for the point.
            if step.coordinate >= len(prefix):
                break
        return steps[place + 1]

    def _run(self, prefix: Prefix) -> list[_Node]:
        is_broken, reads = self._reads.of(self.rule, prefix)
        return [*map(_Node, reads), _BROKEN if is_broken else _KEPT]
