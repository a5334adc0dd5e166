"""The grid of a sweep: its axes, base scenarios and conditions, and the scenario at each point.

The grid is the product of the axes, the first axis slowest. It is never stored: each point is
computed from its index. Parts are ranges of indices, so a part is the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from simtrain.base.extras import require
from simtrain.base.file_kinds import SWEEP, load_kind
from simtrain.base.output_folder import as_path
from simtrain.base.resources import beside, find_scenario, find_sweep, profile_sha256
from simtrain.base.strict_yaml import (
    Path,
    Positions,
    YamlDocument,
    apply_overrides,
    as_scalar,
    data_of,
    document_with,
    leaves,
    overlay,
    parse_document,
    path_of,
    section,
    validate,
    with_value,
)
from simtrain.base.strict_yaml.document import dotted
from simtrain.base.strict_yaml.validation import as_written
from simtrain.errors import InputError, Location, Problem, did_you_mean, wrong_type
from simtrain.hardware.load import profile_of
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.scenario.load import read_scenario, with_paths_beside
from simtrain.scenario.section import spell_out_words
from simtrain.studies.cost import COST_COLUMNS, PRICE_COLUMN
from simtrain.studies.sweep import MANY_POINTS
from simtrain.studies.sweep.executors import versions
from simtrain.studies.sweep.fields import BASE, LARGEST, Condition, attributes_by_name, field_path

Assignment = tuple[Path, Any]
Cell = bool | int | float | str | None
BREAKDOWN = tuple(f"breakdown_{field.name}" for field in fields(Breakdown))
REPORTED = (
    *("iteration_time_s", "tokens_per_s", "mfu", "hfu"),
    *("peak_bytes", "capacity_bytes", "num_gpus", *BREAKDOWN),
)
"""Columns of all results; the objective is one more if it is a cost."""
OBJECTIVES = tuple(name for name in (*REPORTED, *COST_COLUMNS) if name != "capacity_bytes")
MORE_IS_BETTER = frozenset({"mfu", "hfu", "tokens_per_s"})
"""Objectives to maximise; all others are minimised."""
_MOST_IN_GRID, _MAX_BOUND = 10**9, 10**15
# Parts are small enough to share and to lose, and large enough to be worth a file.
_FEWEST_POINTS, _MOST_POINTS, _PARTS_WANTED = 16, 1000, 100
_WITH_PATHS: tuple[Path, ...] = (("cluster",), ("schedule",))
"""Fields whose values may be paths of files."""
_OF_THE_PROFILE = {"base", "cluster", "hardware"}
"""Fields that select or change the profile; loading it for every other value would be slow."""
_EXAMPLE = (
    "write a list [1, 2, 4], {range: [2, 8, 2]} (from, to, step), {powers_of_two: [1, 8]}, or "
    "labels {a: {field: value}}"
)


class SweepFile(BaseModel):
    """Schema of a sweep file; `base` and the values of `axes` are validated later."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    name: str | None = Field(default=None, examples=["interleave"])
    description: str | None = Field(default=None, examples=["What does interleaving buy?"])
    base: Any = Field(default=None, examples=["table5_175b_present"])
    constants: dict[str, float] = Field(default={}, examples=["{num_gpus: 64}"])
    axes: dict[str, Any] = Field(examples=["{batch.micro: [1, 2, 4]}"])
    constraints: list[str] = Field(default=[], examples=["[tensor * data == num_gpus]"])
    objective: str = Field(default="tokens_per_s", examples=["mfu"])


@dataclass(frozen=True)
class Axis:
    """An axis of the grid: the values of one field, or labels that each set several fields.

    Args:
        name: the axis' name, and that of its column in the results.
        values: the field's values (a range stays a range), or the labels.
        groups: the fields that each label sets.
    """

    name: str
    values: Sequence[Any]
    groups: tuple[tuple[Assignment, ...], ...] = ()

    def settings(self, position: int) -> tuple[Assignment, ...]:
        """The fields set by the value or label at a position; a section sets each of its fields."""
        if self.groups:
            return self.groups[position]
        return tuple(leaves(self.values[position], tuple(self.name.split("."))))

    @cached_property
    def column_type(self) -> type[Any]:
        """The narrowest type that represents every value: bool, int, float or str."""
        values = self.values
        ends = [values[0], values[-1]] if isinstance(values, range) else values
        types = {type(value) for value in ends if value is not None}
        fits = all(abs(value) <= LARGEST for value in ends if isinstance(value, int))
        if len(types) == 1 and types <= {bool, int, float, str} and fits:
            return types.pop()
        return float if types == {int, float} and fits else str

    @cached_property
    def paths(self) -> set[Path]:
        """All fields that the axis sets; the positions of a range all set the same field."""
        positions = range(1 if isinstance(self.values, range) else len(self.values))
        return {path for position in positions for path, _ in self.settings(position)}

    def cell(self, position: int) -> Cell:
        """The value at a position, converted to the type of its column."""
        value, kind = self.values[position], self.column_type
        if value is None or (kind is str and isinstance(value, str)):
            return value
        cell: Cell = json.dumps(value) if kind is str else kind(value)
        return cell

    def location(self, document: YamlDocument, position: int, path: Path) -> Location | None:
        """Position in the sweep file of the value that the axis sets a field to."""
        place: Path = ("axes", self.name)
        if self.groups:
            label = self.values[position]
            written = document.data["axes"][self.name][label]
            key = next(key for key in written if path[: key.count(".") + 1] == (*key.split("."),))
            place = (*place, label, key, *path[key.count(".") + 1 :])
        elif not isinstance(self.values, range):
            place = (*place, position, *path[self.name.count(".") + 1 :])
        return document.positions.of_value(place)


@dataclass(frozen=True)
class Sweep:
    """Everything that determines a sweep's results.

    Args:
        file: what the sweep file says, as data.
        name: of the sweep.
        bases: the data of all base scenarios by name, the default one first.
        axes: of the grid.
        conditions: that every point satisfies.
        profiles: SHA-256 of each cluster's profile, by name.
        part_size: points per part.
        overrides: the --set options, already applied to `bases`.
    """

    file: Mapping[str, Any]
    name: str
    bases: Mapping[str, Mapping[str, Any]]
    axes: tuple[Axis, ...]
    conditions: tuple[Condition, ...]
    profiles: Mapping[str, str]
    part_size: int
    overrides: tuple[str, ...] = ()

    @property
    def objective(self) -> str:
        """The column by which points are compared."""
        return str(self.file.get("objective", "tokens_per_s"))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the results, after the axes and the status."""
        return REPORTED if self.objective in REPORTED else (*REPORTED, self.objective)

    @property
    def num_points(self) -> int:
        """Points of the grid, including excluded ones."""
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def num_parts(self) -> int:
        """Number of parts; the last one may have fewer points."""
        return -(-self.num_points // self.part_size)

    def indices(self, part: int) -> range:
        """The indices of a part's points."""
        start = part * self.part_size
        return range(start, min(start + self.part_size, self.num_points))

    def positions(self, index: int) -> list[tuple[Axis, int]]:
        """The axes, each with the position of a point on it."""
        places = []
        for axis in reversed(self.axes):
            index, position = divmod(index, len(axis.values))
            places.append((axis, position))
        return places[::-1]

    def cells(self, index: int) -> dict[str, Cell]:
        """The axes' values at a point, by column."""
        return {axis.name: axis.cell(position) for axis, position in self.positions(index)}

    def scenario(self, index: int) -> Scenario:
        """The scenario at a point; its legality is not checked."""
        settings = [each for axis, place in self.positions(index) for each in axis.settings(place)]
        data = self.bases[_base_of(settings, self.bases)]
        for path, value in settings:
            data = data if path == BASE else with_value(data, path, value, None)
        return validate(Scenario, data, Positions())

    def kept(self, points: Mapping[int, Scenario]) -> dict[int, Scenario]:
        """Return the points at which all conditions hold.

        Raises:
            InputError: a condition is none, or has no value at a point (E810, E812, E813).
        """
        kept = dict(points)
        for condition in self.conditions:
            for index, holds in zip([*kept], condition.holds([*kept.values()]), strict=True):
                if holds is None:
                    cells = ", ".join(f"{k}: {as_scalar(v)}" for k, v in self.cells(index).items())
                    message = "has no value: a field is null, or a number cannot be computed"
                    fix = 'write "x is null or ..." if x may be null; avoid x / 0 and large numbers'
                    raise condition.refusal("E813", message, fix, f"at point {index}: {cells}")
                if not holds:
                    del kept[index]
        return kept

    @property
    def header(self) -> dict[str, Any]:
        """What sweep.json has: numbers, and all that determines the results."""
        identity: dict[str, Any] = {"file": self.file, "bases": self.bases}
        identity |= {"profiles": self.profiles, "versions": versions()}
        identity |= {"constraints": [condition.text for condition in self.conditions]}
        return {
            "name": self.name,
            "overrides": self.overrides,
            "hash": hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
            "num_points": self.num_points,
            "num_parts": self.num_parts,
            "part_size": self.part_size,
            "objective": self.objective,
            **identity,
        }


def load_sweep(
    sweep: str | FilePath | Mapping[str, Any],
    overrides: Sequence[str] = (),
    part_size: int | None = None,
    max_points: int = MANY_POINTS,
) -> Sweep:
    """Load a sweep file, a shipped sweep by its name, or what such a file contains.

    Args:
        sweep: the sweep.
        overrides: overrides of the base scenarios, such as "model.seq_length=4096".
        part_size: points per part of the results; by default about a hundred parts.
        max_points: the largest grid that is accepted; 1e9 is the most in any case.

    Raises:
        InputError: all errors of the file, the overrides and the base scenarios; or pyarrow, whose
            version is part of the results, is not installed.
    """
    require("a sweep", "pyarrow")
    if isinstance(sweep, Mapping):
        try:
            text, name = json.dumps(sweep, indent=2, default=_data_of), "sweep"
        except (TypeError, ValueError) as error:
            fix = 'write what a sweep file contains: {"base": "gpt2_1_5b", "axes": {...}}'
            raise InputError.of("E114", f"the sweep is no plain data: {error}", fix=fix) from error
        document = parse_document(text, "the sweep")
    else:
        path = find_sweep(as_path(sweep))
        document, name = load_kind(path, SWEEP), path.stem
    return _Reader(document, tuple(overrides)).sweep(name, part_size, max_points)


def _data_of(value: object) -> Any:
    """Return the fields of a scenario or of its section; refuse other objects."""
    if not isinstance(value, BaseModel):
        raise wrong_type(value, "plain value", "write numbers, text, lists, dicts or scenarios")
    return data_of(value, only_set=True)


def _base_of(settings: Sequence[Assignment], bases: Mapping[str, Any]) -> str:
    return next((value for path, value in settings if path == BASE), next(iter(bases)))


def _overlap(path: Path, other: Path) -> bool:
    """Whether one of two fields contains the other."""
    depth = min(len(path), len(other))
    return path[:depth] == other[:depth]


class _Reader:
    """Reads a sweep file, and collects its errors with their positions."""

    def __init__(self, document: YamlDocument, overrides: tuple[str, ...]) -> None:
        self.document, self.overrides = document, overrides
        self.file = validate(SweepFile, document.data, document.positions)
        self.key, self.value = document.positions.of_key, document.positions.of_value
        self.problems: list[Problem] = []

    def refuse(self, code: str, message: str, place: Location | None, fix: str) -> None:
        self.problems.append(Problem(code, message, place, fix=fix))

    def end_of_stage(self) -> None:
        """Raise the errors of values that the next stage needs."""
        if self.problems:
            raise InputError([*dict.fromkeys(self.problems)])

    def sweep(self, default_name: str, part_size: int | None, max_points: int) -> Sweep:
        axes = tuple(self.axes())
        self.end_of_stage()
        name = self.file.name or default_name
        bases = self.bases(axes, name)
        num_points = math.prod(len(axis.values) for axis in axes)
        if num_points > (most := min(max_points, _MOST_IN_GRID)):
            message = f"the grid has {num_points:,} points, more than {most:,}"
            fix = "use fewer values, or vary several fields together on one axis"
            if num_points <= _MOST_IN_GRID:
                fix += f"; or simulate them all with --max-points {num_points}"
            self.refuse("E807", message, self.key(("axes",)), fix)
        conditions = self.conditions()
        if self.file.objective not in OBJECTIVES:
            message, place = f'"{self.file.objective}" is not an objective', ("objective",)
            fix = did_you_mean(self.file.objective, OBJECTIVES)
            fix += f"Write one of {', '.join(OBJECTIVES)}"
            self.refuse("E809", message, self.value(place), fix)
        self.end_of_stage()
        clusters = self.check_values(axes, bases)
        self.end_of_stage()
        first = self.located_scenario(axes, (0,) * len(axes), bases)
        for condition in conditions:
            try:
                condition.holds([first])
            except InputError as error:
                self.problems += error.problems
        self.end_of_stage()
        wanted = min(_MOST_POINTS, max(_FEWEST_POINTS, -(-num_points // _PARTS_WANTED)))
        return Sweep(
            self.document.data,
            name,
            {name: {"name": name} | base.data for name, base in bases.items()},
            axes,
            conditions,
            {cluster: profile_sha256(cluster) for cluster in clusters},
            part_size or wanted,
            self.overrides,
        )

    def axes(self) -> Iterator[Axis]:
        axes: list[Axis] = []
        for name, written in self.document.data["axes"].items():
            try:
                axes.append(self.axis(name, written))
            except InputError as error:
                self.problems += error.problems
        if not (axes or self.problems):
            self.refuse("E801", "the sweep has no axes", self.key(("axes",)), _EXAMPLE)
        for first, second in combinations(axes, 2):
            place, pair = self.key(("axes", second.name)), f"{first.name} and {second.name}"
            if first.name.lower() == second.name.lower():
                self.refuse("E804", f"the axes {pair} are one column", place, "SQL ignores case")
            both = [path for path in second.paths for each in first.paths if _overlap(path, each)]
            if both:
                message = f"the axes {pair} both set {min(map(dotted, both))}"
                self.refuse("E804", message, place, "labels can set several fields together")
        yield from axes

    def axis(self, name: str, written: Any) -> Axis:
        """Read an axis: a list of values, a range, powers of two or labelled fields."""
        place: Path = ("axes", name)
        values: Sequence[Any] = ()
        if name.lower() in ("index", "status", "rule", *REPORTED, *COST_COLUMNS):
            message = f"the results already have a column {name.lower()}"
            raise InputError.of("E808", message, self.key(place), "rename the axis")
        match written:
            case {"range": [int(start), int(stop), int(step)]} if len(written) == 1:
                if step > 0 and max(abs(start), abs(stop)) <= _MAX_BOUND:
                    values = range(start, stop + 1, step)
            case {"powers_of_two": [int(low), int(high)]} if len(written) == 1:
                values = [2**n for n in range(64) if low <= 2**n <= high]
            case {"range": _} | {"powers_of_two": _}:
                pass
            case dict() if written:
                return Axis(name, tuple(written), tuple(self.labels(place, written)))
            case list():
                values = written
        if not values:
            message = f"{name}: {as_written(written)} has no values"
            raise InputError.of("E803", message, self.value(place), _EXAMPLE)
        path, seen = field_path(name, self.key(place)), set[str]()
        for number, value in enumerate(values if isinstance(values, list) else ()):
            if not any(leaves(value)):
                message, code = f"{{}} sets no field of {name}", "E803"
                raise InputError.of(code, message, self.value((*place, number)), _EXAMPLE)
            if (text := json.dumps(value)) in seen:
                message, code = f"{name} has the value {text} twice", "E804"
                raise InputError.of(code, message, self.value((*place, number)), "keep one of them")
            seen.add(text)
        if path in _WITH_PATHS:
            values = [self.beside(path, value) for value in values]
        return Axis(name, values)

    def beside(self, path: Path, value: Any) -> Any:
        """Return the value. The path of a file is resolved relative to the sweep file."""
        place = self.key(("axes",))
        is_path = path in _WITH_PATHS and isinstance(value, str)
        return beside(value, place.file) if is_path and place else value

    def labels(self, axis: Path, written: Mapping[str, Any]) -> Iterator[tuple[Assignment, ...]]:
        """Yield what each label sets; refuse one that sets nothing, or a field twice."""
        for label, settings in written.items():
            place = (*axis, label)
            group: list[Assignment] = []
            for field, value in settings.items() if isinstance(settings, dict) else ():
                path = field_path(field, self.key((*place, field)))
                new = [*leaves(self.beside(path, value), path)]
                if not new or any(_overlap(path, each) for path, _ in new for each, _ in group):
                    code, what = ("E804", "twice") if new else ("E803", "to nothing")
                    message = f"{axis[-1]}: {label} sets {field} {what}"
                    raise InputError.of(code, message, self.key((*place, field)), "write it once")
                group += new
            if not group:
                message = f"{axis[-1]}: {label} is {as_written(settings)}, but must set fields"
                self.refuse("E803", message, self.value(place), _EXAMPLE)
            yield tuple(group)

    def bases(self, axes: Sequence[Axis], default_name: str) -> dict[str, YamlDocument]:
        """Return all base scenarios by name, the default first."""
        written, place = self.document.data.get("base"), self.value(BASE)
        named: list[tuple[Any, Location | None]] = []
        is_always_set = False
        for axis in (axis for axis in axes if BASE in axis.paths):
            # A range has numbers, of which the first is refused below.
            positions = range(1 if isinstance(axis.values, range) else len(axis.values))
            bases = [dict(axis.settings(number)).get(BASE) for number in positions]
            is_always_set = None not in bases
            for number, base in enumerate(bases):
                if base is not None:
                    named.append((base, axis.location(self.document, number, BASE)))
        documents: dict[str, YamlDocument] = {}
        if isinstance(written, dict):
            of_file = with_paths_beside(section(self.document, BASE), place.file if place else "")
            documents[str(written.get("name") or default_name)] = of_file
        elif written is not None:
            named.insert(0, (written, place))
        if written is None and not named:
            fix = "add base: table5_175b_present, or the path of a scenario file"
            raise InputError.of("E805", "the sweep has no base scenario", self.key(()), fix)
        if written is not None and is_always_set:
            message = "an axis sets base at every point, so this line has no effect"
            self.refuse("E806", message, self.key(BASE), "remove it, or add its value to the axis")
        for override in self.overrides:
            changed = [
                each for axis in axes for each in axis.paths if _overlap(each, path_of(override))
            ]
            if changed:
                message = f"an axis sets {min(map(dotted, changed))}, so this has no effect"
                fix = "remove the override, or remove the field from the axis"
                self.refuse("E806", message, Location(f"--set {override}"), fix)
        for name, location in named:
            if not (isinstance(name, str) and name):
                message = f"base must be the name of a scenario, not {as_written(name)}"
                fix = "write a name such as table5_175b_present, or the path of a scenario file"
                raise InputError.of("E805", message, location, fix)
            path = find_scenario(beside(name, location.file) if location else name, location)
            documents[name] = read_scenario(path)
        self.end_of_stage()
        for name, document in documents.items():
            for override in self.overrides:
                document = apply_overrides(spell_out_words(document), [override])
            documents[name] = spell_out_words(document)
        return documents

    def conditions(self) -> tuple[Condition, ...]:
        # The value as written, because pydantic converts 64 to 64.0.
        constants = self.document.data.get("constants", {})
        texts = enumerate(self.file.constraints)
        places = ((text, self.value(("constraints", number))) for number, text in texts)
        conditions = tuple(Condition(text, constants, place) for text, place in places)
        for name in constants:
            is_taken = name.lower() in map(str.lower, {*attributes_by_name()} - {"num_gpus"})
            is_used = any(name in condition.names for condition in conditions)
            if is_taken or not (is_used and name.isidentifier()):
                message = f'the constant "{name}" is a field\'s name, no name, or in no constraint'
                fix = "use it, under a name of its own such as max_gpus"
                self.refuse("E808", message, self.key(("constants", name)), fix)
        return conditions

    def check_values(self, axes: Sequence[Axis], bases: Mapping[str, YamlDocument]) -> list[str]:
        """Validate each value of an axis alone; return the clusters of the grid.

        Combinations of values may be illegal; these are counted. A value that is invalid by itself
        is an error in the sweep file.
        """
        clusters: dict[str, None] = {}
        currencies: dict[str, None] = {}
        for varied, chosen in _walk(axes):
            try:
                scenario = self.located_scenario(axes, chosen, bases)
                if varied is None or any(path[0] in _OF_THE_PROFILE for path in varied.paths):
                    costs = profile_of(scenario).running_costs
                    clusters[scenario.cluster] = None
                    if costs and costs.price:
                        currencies[costs.price.value.currency] = None
            except InputError as error:
                self.problems += error.problems
                if varied is None:
                    break  # it would repeat at every other point
        if self.file.objective == PRICE_COLUMN and len(currencies) > 1:
            message = f"the objective compares prices in {', '.join(currencies)}"
            fix = "write another objective, such as gpu_hours_per_1e9_tokens"
            self.refuse("E809", message, self.value(("objective",)), fix)
        return [*clusters]

    def located_scenario(
        self, axes: Sequence[Axis], chosen: Sequence[int], bases: Mapping[str, YamlDocument]
    ) -> Scenario:
        """The scenario at a point, with the position of each value in the file."""
        settings = [
            (path, value, axis.location(self.document, position, path))
            for axis, position in zip(axes, chosen, strict=True)
            for path, value in axis.settings(position)
        ]
        built = bases[_base_of([(path, value) for path, value, _ in settings], bases)]
        for path, value, location in settings:
            if path != BASE:
                built = overlay(built, document_with(path, value, location))
        return Scenario.from_document(built)


def _walk(axes: Sequence[Axis]) -> Iterator[tuple[Axis | None, tuple[int, ...]]]:
    """Yield the first point of the grid, then each axis with the others at their first value."""
    first = (0,) * len(axes)
    yield None, first
    for number, axis in enumerate(axes):
        # Only the last value of a range: the values between are no worse.
        start = max(1, len(axis.values) - 1) if isinstance(axis.values, range) else 1
        for position in range(start, len(axis.values)):
            yield axis, (*first[:number], position, *first[number + 1 :])
