"""Find the legal points of a space, and prune the tree of all points early.

The rules are those of `simtrain.scenario`. A rule is checked as soon as the coordinates that it
reads are chosen, and once for each different combination of their values. Rules do not declare what
they read: they get a scenario that records it, so that new and changed rules need no change here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simtrain.base.values import dataclass, field
from simtrain.scenario import RULES, Rule, Scenario
from simtrain.scenario.section import Section
from simtrain.studies.search.space import COORDINATES, Point, Prefix, Space

_NUM_FIRST = COORDINATES.index("micro")
"""Number of first coordinates; the last ones have the same choices after all of these."""


@dataclass(frozen=True, slots=True)
class LegalPoints:
    """The legal points of a space in its order, and the number of points that each rule removed.

    A point that breaks several rules counts for the first rule that was checked.
    """

    points: tuple[Point, ...]
    removed: Counter[str]
    num_configurations: int


def rules_of_base(space: Space, of_cluster: Sequence[Rule] = ()) -> list[Rule]:
    """Select the rules that read no coordinate: all points of a space break them, or none does."""
    reads = _RuleReads(space)
    return [rule for rule in (*RULES, *of_cluster) if not reads.of(rule, ())[1]]


def legal_points(space: Space, of_cluster: Sequence[Rule] = ()) -> LegalPoints:
    """Find all points of a space that break no rule of the framework and of the cluster."""
    reads, walk = _RuleReads(space), _Walk(space)
    trees = [_DecisionTree(rule, reads) for rule in (*RULES, *of_cluster)]
    walk.add((), [(tree, tree.root) for tree in trees])
    return LegalPoints(tuple(walk.points), walk.removed, space.num_points())


_Open = list[tuple["_DecisionTree", "_Node"]]
"""Rules that the first coordinates of a point do not decide, each with its next read."""


@dataclass
class _Ends:
    """The legal values of the last coordinates, and how many others each rule removes.

    Args:
        reads: the places that rules read to find them.
    """

    legal: list[Prefix] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    reads: set[int] = field(default_factory=set)


@dataclass
class _Walk:
    """Walks the tree of a space's points.

    The last coordinates have the same choices after all others. So their legal values follow from
    the state of the open rules and the coordinates that these read, and are listed once for each.
    Of the options of the base, the first legal combination counts: as much is on as can be.
    """

    space: Space
    points: list[Point] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    _ends: dict[tuple[object, ...], dict[tuple[int, ...], dict[Prefix, _Ends]]] = field(
        default_factory=dict
    )
    """Ends by the state of the open rules, the coordinates that they read, and their values."""

    def add(self, prefix: Prefix, open_rules: _Open) -> None:
        """Add the legal points that begin with `prefix`."""
        if len(prefix) >= _NUM_FIRST:
            ends = self.ends(prefix, open_rules)
            self.removed.update(ends.removed)
            self.points += (self.space.point(prefix + end) for end in ends.legal)
            return
        for choice in self.space.choices(prefix):
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
        is_option = len(prefix) >= len(COORDINATES)
        if is_option and len(prefix) == len(COORDINATES) + len(self.space.options):
            return _Ends([()])
        all_ends = _Ends()
        for choice in self.space.choices(prefix):
            if is_option:
                # Only the last choice of an option, in which all is off, removes a layout.
                all_ends.removed.clear()
            longer = prefix + choice
            still_open = self.follow(longer, open_rules, all_ends)
            if still_open is None:
                continue
            ends = self.ends(longer, still_open)
            all_ends.legal += (choice + end for end in ends.legal)
            all_ends.removed.update(ends.removed)
            all_ends.reads |= ends.reads
            if is_option and all_ends.legal:
                break
        return all_ends

    def follow(self, prefix: Prefix, open_rules: _Open, ends: _Ends) -> _Open | None:
        """Return the rules that `prefix` leaves open; None if it breaks one, which is counted."""
        still_open = []
        for tree, node in open_rules:
            if node.place < len(prefix):
                node = tree.follow(node, prefix, ends.reads)
            if node is _BROKEN:
                is_option = len(prefix) > len(COORDINATES)
                number = 1 if is_option else self.space.num_points(prefix)
                ends.removed[tree.rule.code] += number
                return None
            if node is not _KEPT:
                still_open.append((tree, node))
        return still_open


@dataclass(slots=True, eq=False)
class _Node:
    """Node of a decision tree: the place that is read, and the next node for each of its values."""

    place: int
    next: dict[Any, _Node] = field(default_factory=dict)


_BROKEN, _KEPT = _Node(1 << 30), _Node(1 << 30)
"""Leaves: the rule's outcome."""


class _DecisionTree:
    """Places that a rule reads, as a decision tree. Each evaluation of the rule adds a branch.

    A rule is a pure function: its next read depends only on the values that it has read.
    """

    def __init__(self, rule: Rule, reads: _RuleReads) -> None:
        self.rule, self._reads = rule, reads
        self.root = self._run(())[0]

    def follow(self, node: _Node, prefix: Prefix, reads: set[int]) -> _Node:
        """Return the node after all reads that a prefix of a point determines; add the reads."""
        while node.place < len(prefix):
            reads.add(node.place)
            following = node.next.get(prefix[node.place])
            node = following or self._add_branch(node, prefix)
        return node

    def _add_branch(self, node: _Node, prefix: Prefix) -> _Node:
        nodes = self._run(prefix)
        place = [each.place for each in nodes].index(node.place)
        for following in nodes[place + 1 :]:
            node.next[prefix[node.place]] = following
            node = following
            # Values beyond the prefix are the base's, so their branches do not hold for the point.
            if node.place >= len(prefix):
                break
        return nodes[place + 1]

    def _run(self, prefix: Prefix) -> list[_Node]:
        is_broken, places = self._reads.of(self.rule, prefix)
        return [*map(_Node, places), _BROKEN if is_broken else _KEPT]


class _RuleReads:
    """Checks rules on the points of a space, and records which places of a point they read."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._base = (*Point.of(space.base)[: len(COORDINATES)], *((),) * len(space.options))
        self._values: Prefix = self._base
        self._read_places: dict[int, None] = {}
        fields = {name: self._reader(name, follows) for name, follows in space.follows.items()}
        self._scenario: Scenario = _following(
            space.scenario(Point.of(space.base)), fields, self._whole
        )

    def of(self, rule: Rule, prefix: Prefix) -> tuple[bool, list[int]]:
        """Check a rule at the point with this prefix and otherwise the base's coordinates.

        Returns:
            True if the point breaks the rule, and the places that the rule reads, each once, in the
            order of the first reads.
        """
        self._values, self._read_places = prefix + self._base[len(prefix) :], {}
        is_broken = rule.check(self._scenario) is not None
        return is_broken, [*self._read_places]

    def _read(self, place: int) -> Any:
        self._read_places[place] = None
        return self._values[place]

    def _whole(self) -> Scenario:
        for place in range(len(self._base)):
            self._read(place)
        return self._space.built(self._values.__getitem__)

    def _reader(self, name: str, follows: Any) -> Callable[[], Any]:
        """Return a function that reads a field of the scenario, or one of its sections."""
        if not isinstance(follows, dict):
            return functools.partial(follows, self._read)
        inner = {key: functools.partial(value, self._read) for key, value in follows.items()}
        base = getattr(self._space.scenario(Point.of(self._space.base)), name)
        section = _following(base, inner, lambda: getattr(self._whole(), name))
        return lambda: section


def _following(
    section: Section, fields: Mapping[str, Callable[[], Any]], whole: Callable[[], Section]
) -> Any:
    """Return a copy of a section that calls a function when one of some fields is read.

    What reads all fields at once (`==`, `hash`, iteration, pydantic's methods) uses the `whole`
    section, and so reads every place. Nothing that is derived from fields is kept.
    """
    calls: dict[str, Callable[[], Any]] = {**fields, "__dict__": lambda: vars(whole())}
    calls["_derived"] = dict

    def read(copy: Section, name: str) -> Any:
        call = calls.get(name)
        return object.__getattribute__(copy, name) if call is None else call()

    kind = type(section)
    attributes = {
        "__slots__": (),
        "__getattribute__": read,
        "__eq__": lambda copy, other: whole() == other,
        "__hash__": lambda copy: hash(whole()),
    }
    # Made by `type`, because pydantic's metaclass would collect the fields again.
    following = type.__new__(type(kind), kind.__name__, (kind,), attributes)
    copy = section.model_copy()
    object.__setattr__(copy, "__class__", following)
    return copy
