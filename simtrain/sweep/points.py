"""Build the scenarios of a sweep's points, validating sections that points share once."""

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
    """Builds the same scenarios as `plan.scenario`, in half the time.

    Points with equal positions on all axes that set fields of a section share the validated
    section.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        names = [{str(path[0]) for path in axis.paths} for axis in plan.axes]
        varied = sorted(set().union(*names) - {*BASE})
        self._groups = {name: _Group(_position_picker(names, name)) for name in varied}
        self._rest = _Group(_position_picker(names))

    def scenario(self, index: int) -> Scenario:
        """The scenario at a point; its legality is not checked."""
        positions = self.plan.positions(index)
        try:
            fields = self._rest.at(positions).copy()
            for group in self._groups.values():
                fields |= group.at(positions)
        except KeyError:
            return self._new(index, positions)
        return validate(Scenario, fields, Positions())

    def _new(self, index: int, positions: tuple[int, ...]) -> Scenario:
        """Validate the whole scenario and cache its sections."""
        scenario = self.plan.scenario(index)
        fields = {name: getattr(scenario, name) for name in scenario.model_fields_set}
        for name, group in self._groups.items():
            group.put(positions, {name: fields.pop(name)} if name in fields else {})
        self._rest.put(positions, fields)
        return scenario


class _Group:
    """Validated fields, by the positions on the axes that set them."""

    def __init__(self, pick: Callable[[tuple[int, ...]], object]) -> None:
        self._pick = pick
        self._known: dict[object, _Fields] = {}

    def at(self, positions: tuple[int, ...]) -> _Fields:
        """Return the fields of the group at the positions on the axes."""
        return self._known[self._pick(positions)]

    def put(self, positions: tuple[int, ...], fields: _Fields) -> None:
        """Store the fields of the group at the positions, if there are none yet."""
        self._known.setdefault(self._pick(positions), fields)


def _position_picker(names: list[set[str]], *section: str) -> Callable[[tuple[int, ...]], object]:
    """Return a function that picks the positions on the axes that set a section or the base."""
    axes = [number for number, set_here in enumerate(names) if set_here & {*BASE, *section}]
    return itemgetter(*axes) if axes else lambda positions: ()
