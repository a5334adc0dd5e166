"""Axes of a sweep: their values and the fields that each value sets."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simtrain.base.strict_yaml import Path, YamlDocument, as_scalar, leaves
from simtrain.base.strict_yaml.document import dotted
from simtrain.errors import Location
from simtrain.studies.sweep.fields import Assignment

# The type of a cell of the results.
Cell = bool | int | float | str | None
_SCALARS = (bool, int, float, str, type(None))
# The largest integer that Parquet can store.
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class SweepAxis:
    """An axis of the grid: the values of one field, or labels that each set several fields.

    Args:
        name: the axis' name, and that of its column in the results.
        path: the field; empty for an axis of labels.
        values: the field's values (a range stays a range), or the labels.
        groups: the assignments of each label.
    """

    name: str
    path: Path
    values: Sequence[Any]
    groups: tuple[tuple[Assignment, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def assignments(self, position: int) -> tuple[Assignment, ...]:
        """The fields set by the value or label at a position; a section sets each of its fields."""
        if self.groups:
            return self.groups[position]
        return tuple(leaves(self.values[position], self.path))

    @functools.cached_property
    def column_type(self) -> type[Any]:
        """The narrowest type that represents every value: bool, int, float or str."""
        values = self.values
        return _type_of([values[0], values[-1]] if isinstance(values, range) else values)

    @property
    def paths(self) -> set[Path]:
        """All fields that the axis sets; the positions of a range all set the same field."""
        positions = (0,) if isinstance(self.values, range) else range(len(self.values))
        return {path for position in positions for path, _ in self.assignments(position)}

    def to_json(self) -> Any:
        """The values, or the labels with their assignments, for sweep.json."""
        if self.groups:
            return {
                label: {dotted(path): value for path, value in group}
                for label, group in zip(self.values, self.groups, strict=True)
            }
        if isinstance(self.values, range):
            return {"range": [self.values[0], self.values[-1], self.values.step]}
        return list(self.values)

    @classmethod
    def from_json(cls, name: str, data: Any) -> SweepAxis:
        """Read the output of `to_json`."""
        path = tuple(name.split("."))
        match data:
            case {"range": [first, last, step]}:
                return cls(name, path, range(first, last + 1, step))
            case dict():
                groups = (
                    tuple((tuple(field.split(".")), value) for field, value in group.items())
                    for group in data.values()
                )
                return cls(name, (), tuple(data), tuple(groups))
        return cls(name, path, data)


def cell(axis: SweepAxis, position: int) -> Cell:
    """The value at a position, converted to the type of its column."""
    value = axis.values[position]
    if value is None:
        return None
    column_type = axis.column_type
    if column_type is str:
        return value if isinstance(value, str) else json.dumps(value)
    number: Cell = column_type(value)
    return number


def storable(value: Any) -> Any:
    """Replace integers above 64 bits, which columns cannot hold, by null."""
    return None if isinstance(value, int) and abs(value) > LARGEST else value


def describe_point(cells: Mapping[str, Cell]) -> str:
    """Describe a point: "batch.micro: 4, recompute: full"."""
    return ", ".join(f"{name}: {as_scalar(value)}" for name, value in cells.items())


def _type_of(values: Sequence[Any]) -> type[Any]:
    types = {type(value) for value in values if value is not None}
    fits = all(abs(value) <= LARGEST for value in values if isinstance(value, int))
    if len(types) == 1 and types <= {*_SCALARS} and fits:
        return types.pop()
    return float if types == {int, float} and fits else str


def location_of(
    document: YamlDocument, axis: SweepAxis, position: int, path: Path
) -> Location | None:
    """Position in the sweep file of the value that an axis sets a field to."""
    place: Path = ("axes", axis.name)
    if axis.groups:
        label = axis.values[position]
        place = (*place, label)
        written = document.data["axes"][axis.name][label]
        keys = [key for key in written if path[: key.count(".") + 1] == tuple(key.split("."))]
        rest = path[keys[0].count(".") + 1 :]
        return document.positions.of_value((*place, keys[0], *rest))
    if not isinstance(axis.values, range):
        place = (*place, position, *path[len(axis.path) :])
    return document.positions.of_value(place)
