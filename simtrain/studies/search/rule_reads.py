"""Which coordinates of a point a rule reads.

Rules do not declare their reads. They get a scenario that records them, so that new and changed
rules need no change in a search.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from simtrain.scenario import Rule, Scenario
from simtrain.scenario.section import Section
from simtrain.studies.search.space import COORDINATES, Point, Prefix, Space


class RuleReads:
    """Checks rules on the points of a space, and records which coordinates they read."""

    def __init__(self, space: Space) -> None:
        self._base = Point.of(space.base)._replace(settings=space.settings)
        self._point = _RecordingPoint(self._base)
        self._scenario = _recording(space, self._point)

    def of(self, rule: Rule, prefix: Prefix = ()) -> tuple[bool, list[int]]:
        """Check a rule at the point with this prefix and the base's other coordinates.

        Returns:
            True if the point breaks the rule, and the coordinates that the rule reads as places in
            `Point`, each once, in the order of the first reads.
        """
        self._point.point = Point(*prefix, *self._base[len(prefix) :])
        self._point.reads = {}
        is_broken = rule.check(self._scenario) is not None
        return is_broken, [COORDINATES.index(name) for name in self._point.reads]


class _RecordingPoint:
    """Has a point's coordinates as attributes; `reads` collects the names that are read."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.reads: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        self.reads[name] = None
        return getattr(self.point, name)


def _recording(space: Space, point: _RecordingPoint) -> Scenario:
    """Return a scenario whose fields follow `point` when they are read."""
    scenario = space.scenario(point.point)

    def whole() -> Scenario:
        coordinates = (getattr(point, name) for name in COORDINATES)
        return space.scenario(Point._make((*coordinates, space.settings)))

    def reader(name: str, follows: Any) -> Callable[[], Any]:
        """Return a function that reads a field of the scenario, or one of its sections."""
        if not isinstance(follows, dict):
            return functools.partial(follows, point)
        inner = {field: functools.partial(of_point, point) for field, of_point in follows.items()}
        section = _following(getattr(scenario, name), inner, lambda: getattr(whole(), name))
        return lambda: section

    fields = {name: reader(name, follows) for name, follows in space.values.items()}
    recording: Scenario = _following(scenario, fields, whole)
    return recording


def _following(
    section: Section, fields: Mapping[str, Callable[[], Any]], whole: Callable[[], Section]
) -> Any:
    """Return a copy of a section that calls a function when one of some fields is read.

    What reads all fields at once (`==`, `hash`, iteration, pydantic's methods) uses the `whole`
    section, and so reads every coordinate.
    """
    calls: dict[str, Callable[[], Any]] = {**fields, "__dict__": lambda: vars(whole())}

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
