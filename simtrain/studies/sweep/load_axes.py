"""Read the axes of a sweep file, and report errors with their positions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from simtrain.base.resources import beside
from simtrain.base.strict_yaml import Path, YamlDocument, leaves
from simtrain.base.strict_yaml.document import dotted
from simtrain.base.strict_yaml.validation import as_written
from simtrain.errors import InputError, Problem
from simtrain.studies.sweep.axes import SweepAxis
from simtrain.studies.sweep.bases import overlaps
from simtrain.studies.sweep.fields import Assignment, field_path
from simtrain.studies.sweep.plan import FIXED_COLUMNS, REPORTABLE

_MAX_BOUND = 10**15
_WITH_PATHS: tuple[Path, ...] = (("cluster",), ("schedule",))
"""Fields whose values may be paths of files."""
_EXAMPLE = "write a list [1, 2, 4], {range: [2, 8, 2]}, {powers_of_two: [1, 8]}, or labels"


def load_axes(document: YamlDocument) -> tuple[SweepAxis, ...]:
    """Read the axes of a sweep file in order; refuse all wrong ones together."""
    axes: list[SweepAxis] = []
    problems: list[Problem] = []
    for name in document.data["axes"]:
        try:
            axes.append(_Reader(document, name).axis())
        except InputError as error:
            problems.extend(error.problems)
    if not document.data["axes"]:
        place = document.positions.of_key(("axes",))
        problems.append(Problem("E801", "the sweep has no axes", place, fix=_EXAMPLE))
    if not problems:
        problems.extend(_conflicts(document, axes))
    if problems:
        raise InputError(problems)
    return tuple(axes)


def _conflicts(document: YamlDocument, axes: Sequence[SweepAxis]) -> Iterator[Problem]:
    for first, second in combinations(axes, 2):
        if first.name.lower() == second.name.lower():
            yield Problem(
                "E804",
                f"the axes {first.name} and {second.name} are the same column in a query",
                document.positions.of_key(("axes", second.name)),
                fix="rename one of them; SQL ignores case",
            )
        common = [path for path in second.paths for other in first.paths if overlaps(path, other)]
        if common:
            yield Problem(
                "E804",
                f"the axes {first.name} and {second.name} both set {min(map(dotted, common))}",
                document.positions.of_key(("axes", second.name)),
                fix="set it on one axis only; labels can set several fields together",
            )


class _Reader:
    """Reads one axis."""

    def __init__(self, document: YamlDocument, name: str) -> None:
        self.positions = document.positions
        self.name = name
        self.written = document.data["axes"][name]
        self.place: Path = ("axes", name)

    def axis(self) -> SweepAxis:
        """Read the axis: a list of values, a range, powers of two or labelled values."""
        # SQL ignores case: Status is status.
        if (column := self.name.lower()) in (*FIXED_COLUMNS, *REPORTABLE):
            message = f"the results already have a column {column}"
            raise self.refuse("E808", message, "rename the axis", key=True)
        match self.written:
            case {"range": bounds, **rest} if not rest:
                return self.field_axis(self.range_of(bounds))
            case {"powers_of_two": bounds, **rest} if not rest:
                return self.field_axis(self.powers_of_two(bounds))
            case dict() if self.written:
                return self.labelled_axis(self.written)
            case list() if self.written:
                return self.field_axis(self.distinct(self.written))
        if self.written in (None, [], {}):
            raise self.refuse("E803", f"{self.name} has no values", _EXAMPLE)
        message = f"{self.name} must be a list of values, not {as_written(self.written)}"
        raise self.refuse("E803", message, f"for a single value write [{as_written(self.written)}]")

    def refuse(
        self, code: str, message: str, fix: str, *inside: str | int, key: bool = False
    ) -> InputError:
        """Build the error of a value inside the axis, or of its key."""
        find = self.positions.of_key if key else self.positions.of_value
        return InputError.of(code, message, find((*self.place, *inside)), fix)

    def field_axis(self, values: Sequence[Any]) -> SweepAxis:
        """Build the axis that sets the field named by the axis to each value."""
        path = field_path(self.name, self.positions.of_key(self.place))
        if path in _WITH_PATHS:
            values = [self.beside(path, value) for value in values]
        return SweepAxis(self.name, path, values)

    def beside(self, path: Path, value: Any) -> Any:
        """Return the value. The path of a file is resolved relative to the sweep file."""
        place = self.positions.of_key(self.place)
        if path not in _WITH_PATHS or not isinstance(value, str) or place is None:
            return value
        return beside(value, place.file)

    def distinct(self, values: list[Any]) -> tuple[Any, ...]:
        """Return the values, after a check that none is empty (E803) or repeated (E804)."""
        for number, value in enumerate(values):
            if not any(leaves(value)):
                raise self.refuse("E803", f"{{}} sets no field of {self.name}", _EXAMPLE, number)
        seen: set[str] = set()
        for number, text in enumerate(map(json.dumps, values)):
            if text in seen:
                message = f"{self.name} has the value {text} twice"
                raise self.refuse("E804", message, "keep one of the two", number)
            seen.add(text)
        return tuple(values)

    def range_of(self, bounds: Any) -> range:
        """Read [from, to (inclusive), step]."""
        start, stop, step = self.integers("range", bounds, 3)
        if abs(large := max(start, stop, key=abs)) > _MAX_BOUND:
            message = f"{large} is above the largest bound, {_MAX_BOUND:.0e}"
            raise self.refuse("E803", message, "write smaller bounds", "range")
        if step < 1:
            raise self.refuse("E803", f"the step is {step}", "write 1 or more", "range")
        if stop < start:
            message = f"the range from {start} to {stop} is empty"
            raise self.refuse("E803", message, "write [from, to, step] with to >= from", "range")
        return range(start, stop + 1, step)

    def powers_of_two(self, bounds: Any) -> tuple[int, ...]:
        """Read [from, to], both inclusive."""
        low, high = self.integers("powers_of_two", bounds, 2)
        values = tuple(2**n for n in range(64) if low <= 2**n <= high)
        if not values:
            message = f"there is no power of two from {low} to {high}"
            raise self.refuse("E803", message, "write bounds such as [1, 8]", "powers_of_two")
        return values

    def integers(self, kind: str, bounds: Any, count: int) -> list[int]:
        """Return the bounds as `count` integers."""
        if isinstance(bounds, list) and len(bounds) == count:
            integers = [bound for bound in bounds if type(bound) is int]
            if len(integers) == count:
                return integers
        example = {2: "[1, 8]: from, to", 3: "[2, 8, 2]: from, to (inclusive), step"}[count]
        message = f"{kind} of {self.name} must be {count} integers"
        raise self.refuse("E803", message, f"write {kind}: {example}; or a list of values", kind)

    def labelled_axis(self, groups: Mapping[str, Any]) -> SweepAxis:
        """Build an axis of labels; refuse a label that sets no fields (E803)."""
        problems: list[Problem] = []
        for label, fields in groups.items():
            if not isinstance(fields, dict) or not fields:
                message = f"{self.name}: {label} is {as_written(fields)}, but must set fields"
                error = self.refuse("E803", message, f"{_EXAMPLE} {{a: {{field: value}}}}", label)
                problems.extend(error.problems)
        if problems:
            raise InputError(problems)
        read = (self.fields_of_label(label, fields) for label, fields in groups.items())
        return SweepAxis(self.name, (), tuple(groups), tuple(read))

    def fields_of_label(self, label: str, fields: Mapping[str, Any]) -> tuple[Assignment, ...]:
        """Return what a label sets; refuse a field without a value (E803) or set twice (E804)."""
        set_here: list[Assignment] = []
        for name, value in fields.items():
            key = self.positions.of_key((*self.place, label, name))
            path = field_path(name, key)
            new = [*leaves(self.beside(path, value), path)]
            if not new:
                message = f"{self.name}: {label} sets no field of {name}"
                raise self.refuse("E803", message, _EXAMPLE, label, name)
            if any(overlaps(path, other) for path, _ in new for other, _ in set_here):
                message = f"{self.name}: {label} sets {name} twice"
                raise InputError.of("E804", message, key, "keep one of the two")
            set_here.extend(new)
        return tuple(set_here)
