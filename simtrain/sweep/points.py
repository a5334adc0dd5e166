"""The scenarios at a sweep's points, with the sections that points share validated once."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from simtrain.scenario import Scenario
from simtrain.strict_yaml import Positions, validate
from simtrain.sweep.fields import BASE
from simtrain.sweep.plan import Plan

_Fields = dict[str, Any]


class Points:
    """Makes scenarios as `plan.scenario` does, in half the time.

    What an axis sets of a scenario follows from a point's position on that axis. Points with equal
    positions on all axes of a section share the validated section.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        names = [{str(path[0]) for path in axis.paths} for axis in plan.axes]
        varied = sorted(set().union(*names) - {*BASE})
        self._groups = {name: _Group(_picker(names, name)) for name in varied}
        self._rest = _Group(_picker(names))

    def scenario(self, index: int) -> Scenario:
        """The scenario at a point; whether it is legal has not been looked at."""
        positions = self.plan.positions(index)
        try:
            fields = self._rest.at(positions).copy()
            for group in self._groups.values():
                fields |= group.at(positions)
        except KeyError:
            return self._new(index, positions)
        return validate(Scenario, fields, Positions())

    def _new(self, index: int, positions: tuple[int, ...]) -> Scenario:
        """Validate everything, and remember it."""
        scenario = self.plan.scenario(index)
        fields = {name: getattr(scenario, name) for name in scenario.model_fields_set}
        for name, group in self._groups.items():
            group.put(positions, {name: fields.pop(name)} if name in fields else {})
        self._rest.put(positions, fields)
        return scenario


class _Group:
    """Validated fields, by a point's positions on the axes that decide about them."""

    def __init__(self, pick: Callable[[tuple[int, ...]], object]) -> None:
        self._pick = pick
        self._known: dict[object, _Fields] = {}

    def at(self, positions: tuple[int, ...]) -> _Fields:
        return self._known[self._pick(positions)]

    def put(self, positions: tuple[int, ...], fields: _Fields) -> None:
        self._known.setdefault(self._pick(positions), fields)


def _picker(names: list[set[str]], *section: str) -> Callable[[tuple[int, ...]], object]:
    """Picks a point's positions on the axes that set the base or something of a section."""
    axes = [number for number, set_here in enumerate(names) if set_here & {*BASE, *section}]
    return itemgetter(*axes) if axes else lambda positions: ()
