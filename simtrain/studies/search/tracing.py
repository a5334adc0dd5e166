"""Run a rule on a point of a space and record which coordinates of the point it reads.

A rule receives a view of the point's scenario instead of the scenario. Rules do not declare their
reads, so new and changed rules need no change here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from simtrain.scenario import Rule
from simtrain.scenario.section import Section
from simtrain.studies.search.space import Point, Prefix, Space


class Tracer:
    """Runs rules on the points of a space."""

    def __init__(self, space: Space) -> None:
        self._base = Point.of(space.base)
        self._recorder = _Recorder()
        self._view = _view(space, self._recorder)

    def run(self, rule: Rule, prefix: Prefix = ()) -> tuple[bool, list[int]]:
        """Check a rule at the point with this prefix and the base's other coordinates.

        Returns:
            True if the point breaks the rule, and the coordinates that the rule read as places in
            `Point`, each once, in the order of the first reads.
        """
        self._recorder.point = Point(*prefix, *self._base[len(prefix) :])
        self._recorder.reads = {}
        try:
            violation = rule.check(self._view)
        except Exception:
            # The rule needs an attribute that only a real scenario has.
            violation = rule.check(self._view.model_copy())
        return violation is not None, [Point._fields.index(name) for name in self._recorder.reads]


class _Recorder:
    """Has a point's coordinates as attributes; `reads` collects the names that are read."""

    point: Point
    reads: dict[str, None]

    def __getattr__(self, name: str) -> Any:
        self.reads[name] = None
        return getattr(self.point, name)


def _view(space: Space, recorder: _Recorder, section: str = "") -> Any:
    """Create a view of the scenario at the recorder's point, or of one of its sections.

    The view's class has the fields, properties and methods of the section's class. Fields that
    depend on the point read the recorder, so properties and methods record their reads. Everything
    else (pydantic's methods, ==, hash) uses the real section and reads every coordinate.
    """
    base: Section = getattr(space.base, section) if section else space.base

    def real() -> Any:
        scenario = space.scenario(Point(*(getattr(recorder, name) for name in Point._fields)))
        return getattr(scenario, section) if section else scenario

    def recorded(follows: Callable[[Any], Any]) -> property:
        return property(lambda view: follows(recorder))

    attributes: dict[str, Any] = {
        name: attribute
        for name, attribute in vars(type(base)).items()
        if isinstance(attribute, (property, FunctionType)) and not name.startswith("__")
    }
    attributes |= {field: getattr(base, field) for field in type(base).model_fields}
    for field, follows in (space.values[section] if section else space.values).items():
        is_section = isinstance(follows, dict)
        attributes[field] = _view(space, recorder, field) if is_section else recorded(follows)
    attributes["__eq__"] = lambda view, other: real() == other
    for method in (hash, iter, repr):
        attributes[f"__{method.__name__}__"] = lambda view, method=method: method(real())
    attributes["__getattr__"] = lambda view, name: getattr(real(), name)
    return type("View", (), attributes | {"__slots__": (), "__class__": type(base)})()
