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
from simtrain.scenario.offload_rules import NO_HOST_COPIES
from simtrain.scenario.precision_rules import products_rule
from simtrain.scenario.userbuffer_rules import userbuffer_node_rule
from simtrain.studies.search.rule_reads import RuleReads
from simtrain.studies.search.space import COORDINATES, Point, Prefix, Space
from simtrain.studies.search.stopping import Stop, Stopped, StopRequestedError, check, never

_LAST_STOP = COORDINATES.index("micro")
"""Coordinates after which the list is not stopped; the others take milliseconds."""


@dataclass(frozen=True, slots=True)
class LegalPoints:
    """The legal points of a space in its order, and the number of points that each rule removed.

    A point that breaks several rules counts for the first rule that was checked.

    Args:
        points: the legal layouts.
        removed: number of illegal layouts by the code of the rule.
        num_configurations: number of layouts, legal or not.
        stopped: why the list ended early; more points are legal then.
    """

    points: tuple[Point, ...]
    removed: Counter[str]
    num_configurations: int
    stopped: Stopped | None = None


def rules_of_base(space: Space) -> list[Rule]:
    """Select the rules that read no coordinate: all points of a space break them, or none does."""
    variants = [RuleReads(space.variant(settings)) for settings in space.all_settings]

    def is_of_base(rule: Rule) -> bool:
        outcomes = [reads.of(rule) for reads in variants]
        same = len({is_broken for is_broken, _ in outcomes}) == 1
        return same and not any(coordinates for _, coordinates in outcomes)

    return [*filter(is_of_base, RULES)]


def rules_on(profile: HardwareProfile) -> tuple[Rule, ...]:
    """Return the rules of a cluster that only some points of a space break.

    The cluster's other rules concern the base and the number of GPUs.
    """
    return (userbuffer_node_rule(profile.cluster.nvlink_gpus),)


def refined_rules_on(profile: HardwareProfile) -> tuple[Rule, ...]:
    """Return the rules of a cluster that changes of any field can break."""
    of_kernels = products_rule(profile.product_types), dispatcher_rule(profile.dispatcher_names)
    absent = [] if profile.host_link else [NO_HOST_LINK, NO_HOST_COPIES]
    absent += [] if profile.fused_attention else [NO_FUSED_ATTENTION]
    return *rules_on(profile), *of_kernels, *absent


def legal_points(space: Space, of_cluster: Sequence[Rule] = (), stop: Stop = never) -> LegalPoints:
    """Find all points of a space that break no rule of the framework and of the cluster.

    After the first point, `stop` can end the list early.
    """
    points: list[Point] = []
    removed: Counter[str] = Counter()
    stopped: Stopped | None = None

    def walk(prefix: Prefix, open_rules: list[tuple[_DecisionTree, _Node]]) -> None:
        """Add the legal points that begin with `prefix`; `open_rules` are not decided by it."""
        if len(prefix) == len(COORDINATES):
            points.append(Point._make((*prefix, variant.settings)))
            return
        if points and len(prefix) < _LAST_STOP:
            check(stop)
        for choice in variant.choices(prefix):
            longer = prefix + choice
            still_open = []
            for tree, step in open_rules:
                if step.coordinate < len(longer):
                    step = tree.follow(step, longer)
                if step is _BROKEN:
                    removed[tree.rule.code] += variant.num_points(longer)
                    break
                if step is not _KEPT:
                    still_open.append((tree, step))
            else:
                walk(longer, still_open)

    variants = [space.variant(settings) for settings in space.all_settings]
    try:
        for variant in variants:
            reads = RuleReads(variant)
            trees = [_DecisionTree(rule, reads) for rule in (*RULES, *of_cluster)]
            walk((), [(tree, tree.root) for tree in trees])
    except StopRequestedError as request:
        stopped = request.why
    num_configurations = sum(variant.num_points() for variant in variants)
    return LegalPoints(tuple(points), removed, num_configurations, stopped)


@dataclass(slots=True)
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

    def follow(self, step: _Node, prefix: Prefix) -> _Node:
        """Return the node after all reads that a prefix of a point determines."""
        while step.coordinate < len(prefix):
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
