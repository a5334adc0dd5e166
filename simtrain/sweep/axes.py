"""The axes of a sweep: their values, and the fields that each value sets."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simtrain.errors import Location
from simtrain.strict_yaml import Document, Path
from simtrain.sweep.fields import Assignment, leaves

# What a column of the results holds.
Cell = bool | int | float | str | None
_SCALARS = (bool, int, float, str, type(None))
# Parquet's integers.
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class FieldAxis:
    """An axis named by a field, which takes each of the values; a range is not spelled out."""

    name: str
    path: Path
    values: Sequence[Any]

    def __len__(self) -> int:
        return len(self.values)

    def value(self, position: int) -> Any:
        """What is written at a position of the axis."""
        return self.values[position]

    def assignments(self, position: int) -> tuple[Assignment, ...]:
        """The fields that the value at a position sets."""
        return leaves(self.path, self.values[position])

    @functools.cached_property
    def column_type(self) -> type[Any]:
        """The type that holds every value: bool, int, float or str."""
        values = self.values
        return _type_of([values[0], values[-1]] if isinstance(values, range) else values)

    @property
    def paths(self) -> set[Path]:
        """What the axis sets."""
        ranged = isinstance(self.values, range)
        positions = (0,) if ranged else range(len(self.values))
        return {path for position in positions for path, _ in self.assignments(position)}

    def to_json(self) -> Any:
        """The values as sweep.json holds them."""
        if isinstance(self.values, range):
            return {"range": [self.values[0], self.values[-1], self.values.step]}
        return list(self.values)


@dataclass(frozen=True)
class LabelledAxis:
    """An axis with labels, each of which sets several fields together."""

    name: str
    labels: tuple[str, ...]
    groups: tuple[tuple[Assignment, ...], ...]

    def __len__(self) -> int:
        return len(self.labels)

    def value(self, position: int) -> str:
        """The label at a position of the axis."""
        return self.labels[position]

    def assignments(self, position: int) -> tuple[Assignment, ...]:
        """The fields that the label at a position sets."""
        return self.groups[position]

    @property
    def column_type(self) -> type[Any]:
        """Labels are text."""
        return str

    @property
    def paths(self) -> set[Path]:
        """What the axis sets."""
        return {path for group in self.groups for path, _ in group}

    def to_json(self) -> Any:
        """The labels and what they set, as sweep.json holds them."""
        return {
            label: {".".join(map(str, path)): value for path, value in group}
            for label, group in zip(self.labels, self.groups, strict=True)
        }


Axis = FieldAxis | LabelledAxis


def cell(axis: Axis, position: int) -> Cell:
    """The value at a position as its column holds it."""
    value = axis.value(position)
    if value is None:
        return None
    column_type = axis.column_type
    if column_type is str:
        return as_text(value)
    number: Cell = column_type(value)
    return number


def as_text(value: Any) -> str:
    """A value as one line of text; of a section, JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _type_of(values: Sequence[Any]) -> type[Any]:
    found = {type(value) for value in values if value is not None}
    fits = all(abs(value) <= LARGEST for value in values if isinstance(value, int))
    if len(found) == 1 and found <= {*_SCALARS} and fits:
        return found.pop()
    return float if found == {int, float} and fits else str


def location_of(document: Document, axis: Axis, position: int, path: Path) -> Location | None:
    """Where in the sweep's file the value stands that an axis sets a field to."""
    place: Path = ("axes", axis.name)
    if isinstance(axis, LabelledAxis):
        place = (*place, axis.labels[position])
        written = document.data["axes"][axis.name][axis.labels[position]]
        keys = [key for key in written if path[: key.count(".") + 1] == tuple(key.split("."))]
        rest = path[keys[0].count(".") + 1 :]
        return document.positions.of_value((*place, keys[0], *rest))
    if not isinstance(axis.values, range):
        place = (*place, position, *path[len(axis.path) :])
    return document.positions.of_value(place)
