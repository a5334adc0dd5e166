"""The grid of a sweep: its axes, base scenarios and conditions, and the scenario at each point.

The grid is the product of the axes, the first axis slowest. It is never stored: each point is
computed from its index. Parts are ranges of indices, so a part is the same on every machine.
"""

from __future__ import annotations

import atexit
import difflib
import functools
import hashlib
import json
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from simtrain.base.extras import require
from simtrain.base.importer import SWEEP, load_kind
from simtrain.base.output_folder import as_path
from simtrain.base.plain_data import attribute
from simtrain.base.resources import beside, find_scenario, find_sweep, profile_sha256
from simtrain.base.strict_yaml import (
    Path,
    Positions,
    YamlDocument,
    apply_overrides,
    as_scalar,
    data_of,
    leaves,
    parse_document,
    path_of,
    section,
    validate,
    with_value,
)
from simtrain.base.strict_yaml.reading import Place, dotted
from simtrain.base.strict_yaml.validation import as_written, legal_keys
from simtrain.base.values import dataclass, fields, replace
from simtrain.base.version import VERSION
from simtrain.errors import InputError, Location, Problem, did_you_mean, wrong_type
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.scenario.check import read_scenario, with_paths_beside
from simtrain.scenario.schema import STACK_DEFAULTS
from simtrain.scenario.section import spell_out_words

if TYPE_CHECKING:
    import duckdb

BASE: Path = ("base",)
"""Pseudo-field: the name of the point's base scenario."""
_HARDWARE, _WITHOUT_EFFECT = "hardware", {"name", "description"}
_DERIVED = ("num_gpus", "num_microbatches")
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|(?<![\w.])([^\W\d][\w.]*)")
"""Text in quotes, or a name."""


@functools.cache
def field_paths() -> tuple[Path, ...]:
    """All sections and fields of a scenario that affect the simulation."""
    paths: list[Path] = [(key,) for key in legal_keys(Scenario, ()) if key not in _WITHOUT_EFFECT]
    for path in paths:
        paths.extend((*path, key) for key in legal_keys(Scenario, path))
    return tuple(paths)


@functools.cache
def attributes_by_name() -> Mapping[str, str]:
    """Map each name that a condition may use to the scenario attribute that it reads.

    A field can be named without its section; the first section that has the field wins
    (`num_layers` is `model.num_layers`, `pipeline` is `parallelism.pipeline`). `recompute` reads
    the strategy, as in scenario files.
    """
    names: dict[str, str] = {"recompute": "recompute.strategy"}
    sections = {path[0] for path in field_paths() if len(path) > 1}
    for path in field_paths():
        if path == (_HARDWARE,) or (len(path) == 1 and path[0] in sections):
            continue
        name = dotted(path)
        default = STACK_DEFAULTS.get(name)
        # The attribute of batch.global is global_, because global is a keyword of Python.
        parts = (f"{key}_" if keyword.iskeyword(str(key)) else str(key) for key in path)
        names[name] = default.resolved if default else ".".join(parts)
        names.setdefault(str(path[-1]), names[name])
    return names | {name: name for name in _DERIVED}


def field_path(name: str, location: Location | None) -> Path:
    """Find the path of a field (else E802) by its dotted name, or of an entry below `hardware`."""
    path: Path = tuple(name.split("."))
    is_entry = path[0] == _HARDWARE and len(path) > 1 and all(path)
    if is_entry or path == BASE or path in field_paths():
        return path
    names = {dotted(path): dotted(path) for path in (BASE, *field_paths())}
    # A field is also meant by its last part; of several, the first section's.
    names = {name.rpartition(".")[2]: name for name in reversed(names)} | names
    last = name.rpartition(".")[2]
    similar = [last] if last in names else difflib.get_close_matches(name, names, 1)
    question = f"did you mean {names[similar[0]]}? " if similar else ""
    sections = ", ".join(str(path[0]) for path in field_paths() if len(path) == 1)
    fix = (
        f"{question}An axis is a field such as parallelism.tensor (sections: {sections}), or any "
        "other name with labels that each set several fields"
    )
    raise InputError.of("E802", f'"{name}" is not a field of a scenario', location, fix)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a sweep file: an expression of SQL on the fields of a scenario."""

    text: str
    place: Location | None = None

    def holds(self, scenarios: Sequence[Scenario]) -> list[bool | None]:
        """Return whether it holds for each scenario, None without a value; no condition is E810."""
        require("a constraint", "duckdb", "pyarrow")
        import duckdb
        import pyarrow

        attributes = attributes_by_name()
        names = {token[1] for token in _TOKEN.finditer(self.text)} & attributes.keys()
        columns: dict[str, list[Any]] = {"": [None] * len(scenarios)}
        for name in names:
            columns[name] = [attribute(scenario, attributes[name]) for scenario in scenarios]
        # Quoted, because of the points in names. TRY turns a division by zero into null.
        sql = _TOKEN.sub(lambda word: f'"{word[0]}"' if word[1] in names else word[0], self.text)
        try:
            duckdb.SQLExpression(sql)
            points = _database().cursor().from_arrow(pyarrow.table(columns))
            answer = points.select(duckdb.SQLExpression(f"try({sql})"))
            kind, rows = str(answer.types[0]), answer.fetchall()
        except (duckdb.Error, pyarrow.ArrowException) as error:
            fields = ", ".join(name for name in attributes if "." not in name)
            fix = f"compare numbers with numbers, and text with 'text'; fields are {fields}"
            message = f"cannot be read: {str(error).partition(chr(10))[0]}"
            raise self.refusal(message, fix) from error
        if kind not in ("BOOLEAN", '"NULL"') or len(rows) != len(scenarios):
            fix = "write a comparison: tensor * pipeline * data == num_gpus"
            raise self.refusal("is neither true nor false", fix)
        return [holds for (holds,) in rows]

    def refusal(self, message: str, fix: str, reason: str | None = None) -> InputError:
        message = f'the constraint "{self.text}" {message}'
        return InputError.of("E810", message, self.place, fix, reason)


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """Open one database per process. Only sweeps with conditions load it."""
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    # 1 / 0 is an error, not infinite.
    connection.execute("set global ieee_floating_point_ops = false")
    allow_only(connection)
    # DuckDB's bindings print warnings if a connection outlives the interpreter's modules.
    atexit.register(_database.cache_clear)
    return connection


def allow_only(connection: duckdb.DuckDBPyConnection, files: Sequence[str] = ()) -> None:
    """Refuse other files, the network and Python's variables: colleagues share sweeps, queries."""
    connection.execute("set allowed_paths = ?", [list(files)])
    connection.execute("set python_enable_replacements = false")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


Setting = tuple[Path, Any, Location | None]
"""A field, its value, and the place of the value in the sweep file."""
Cell = bool | int | float | str | None
BREAKDOWN = tuple(f"breakdown_{field.name}" for field in fields(Breakdown))
REPORTED = (
    *("iteration_time_s", "tokens_per_s", "mfu", "hfu"),
    *("peak_bytes", "capacity_bytes", "num_gpus", *BREAKDOWN),
)
"""Columns of all results; the objective is one more if it is a cost."""
OBJECTIVES = tuple(name for name in REPORTED if name != "capacity_bytes")
MORE_IS_BETTER = frozenset({"mfu", "hfu", "tokens_per_s"})
"""Objectives to maximise; all others are minimised."""
_MOST_VALUES = 10_000
# Parts are small enough to share and to lose, and large enough to be worth a file.
_FEWEST_POINTS, _MOST_POINTS, _PARTS_WANTED = 16, 1000, 100
_WITH_PATHS: tuple[Path, ...] = (("cluster",), ("schedule",))
"""Fields whose values may be paths of files."""
_OF_THE_PROFILE = {"base", "cluster", "hardware"}
"""Fields that select or change the profile; loading it for every other value would be slow."""
_EXAMPLE = (
    "write a list [1, 2, 4], {range: [2, 8, 2]} (from, to, step), {powers_of_two: [1, 8]}, or "
    f"labels {{a: {{field: value}}}}; at most {_MOST_VALUES:,} values"
)


class SweepFile(BaseModel):
    """Schema of a sweep file; `base` and the values of `axes` are validated later."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    name: str | None = Field(default=None, examples=["interleave"])
    description: str | None = Field(default=None, examples=["What does interleaving buy?"])
    base: Any = Field(default=None, examples=["table5_175b_present"])
    axes: dict[str, Any] = Field(examples=["{batch.micro: [1, 2, 4]}"])
    constraints: list[str] = Field(default=[], examples=["[tensor * data == 64]"])
    objective: str = Field(default="tokens_per_s", examples=["mfu"])


@dataclass(frozen=True)
class Axis:
    """An axis of the grid: the values of one field, or labels that each set several fields.

    Args:
        settings: [values], what each value or label sets; a section sets each of its fields.
    """

    name: str
    values: Sequence[Any]
    settings: Sequence[tuple[Setting, ...]] = ()

    @cached_property
    def column_type(self) -> type[Any]:
        """The narrowest type that represents every value: bool, int, float or str."""
        types = {type(value) for value in self.values if value is not None}
        if len(types) == 1 and types <= {bool, int, float, str}:
            return types.pop()
        return float if types == {int, float} else str

    @cached_property
    def paths(self) -> set[Path]:
        return {path for settings in self.settings for path, *_ in settings}

    def cell(self, position: int) -> Cell:
        """The value at a position, converted to the type of its column."""
        value, kind = self.values[position], self.column_type
        if value is None or (kind is str and isinstance(value, str)):
            return value
        cell: Cell = json.dumps(value) if kind is str else kind(value)
        return cell


@dataclass(frozen=True)
class Sweep:
    """Everything that determines a sweep's results.

    Args:
        bases: all base scenarios by name, the default one first.
        profiles: SHA-256 of each cluster's profile, by name.
    """

    file: Mapping[str, Any]
    name: str
    bases: Mapping[str, YamlDocument]
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
    def num_points(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def num_parts(self) -> int:
        """Number of parts; the last one may have fewer points."""
        return -(-self.num_points // self.part_size)

    def indices(self, part: int) -> range:
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
        return {axis.name: axis.cell(position) for axis, position in self.positions(index)}

    def scenario(self, index: int) -> Scenario:
        """The scenario at a point; its legality is not checked."""
        return self._scenario_at(self.positions(index))

    def _scenario_at(self, places: Sequence[tuple[Axis, int]]) -> Scenario:
        settings = [setting for axis, position in places for setting in axis.settings[position]]
        default = next(iter(self.bases))
        base = self.bases[next((value for path, value, _ in settings if path == BASE), default)]
        data, positions = base.data, dict(base.positions.places)
        for path, value, place in settings:
            if path != BASE:
                data = with_value(data, path, value, place)
                if place:
                    positions[path] = Place(place, place)
        return Scenario.from_document(YamlDocument(data, Positions(positions)))

    def kept(self, points: Mapping[int, Scenario]) -> dict[int, Scenario]:
        """Return the points at which all conditions hold; one without a value is E810."""
        kept = dict(points)
        for condition in self.conditions:
            for index, holds in zip([*kept], condition.holds([*kept.values()]), strict=True):
                if holds is None:
                    cells = ", ".join(f"{k}: {as_scalar(v)}" for k, v in self.cells(index).items())
                    message = "has no value: a field is null, or a number cannot be computed"
                    fix = 'write "x is null or ..." if x may be null; avoid x / 0 and large numbers'
                    raise condition.refusal(message, fix, f"at point {index}: {cells}")
                if not holds:
                    del kept[index]
        return kept

    def checked(self) -> dict[str, str]:
        """Validate each value of an axis alone; return the digests of the clusters' profiles.

        Combinations of values may be illegal; these are counted. A value that is invalid by itself
        is an error in the sweep file.

        Raises:
            InputError: the errors of all values; prices in several currencies are the objective.
        """
        clusters, problems = dict[str, HardwareProfile](), list[Problem]()
        first = self.positions(0)
        # The first point, then each axis with the others at their first value.
        points: list[tuple[Axis | None, list[tuple[Axis, int]]]] = [(None, first)]
        for number, axis in enumerate(self.axes):
            for position in range(1, len(axis.values)):
                points.append((axis, [*first[:number], (axis, position), *first[number + 1 :]]))
        for varied, places in points:
            try:
                scenario = self._scenario_at(places)
                if varied is None or any(path[0] in _OF_THE_PROFILE for path in varied.paths):
                    clusters[scenario.cluster] = profile_of(scenario)
            except InputError as error:
                problems += error.problems
                if varied is None:
                    break  # it would repeat at every other point
        if problems:
            raise InputError([*dict.fromkeys(problems)])
        return {cluster: profile_sha256(cluster) for cluster in clusters}

    @property
    def header(self) -> dict[str, Any]:
        """What sweep.json has: numbers, and all that determines the results."""
        identity: dict[str, Any] = {"file": self.file}
        identity |= {"bases": {name: base.data for name, base in self.bases.items()}}
        versions = {"simtrain": VERSION, "pyarrow": metadata.version("pyarrow")}
        identity |= {"profiles": self.profiles, "versions": versions}
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


def load_sweep(sweep: str | FilePath | Mapping[str, Any], overrides: Sequence[str] = ()) -> Sweep:
    """Load a sweep file, a shipped sweep by its name, or what such a file contains.

    Raises:
        InputError: an error of the file, the overrides or the base scenarios, with its place; or
            pyarrow, whose version is part of the results, is not installed.
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
    file, place = validate(SweepFile, document.data, document.positions), document.positions
    axes, name = _axes(document), file.name or name
    bases = _bases(document, axes, tuple(overrides), name)
    num_points = math.prod(len(axis.values) for axis in axes)
    if file.objective not in OBJECTIVES:
        message = f'"{file.objective}" is not an objective'
        fix = f"{did_you_mean(file.objective, OBJECTIVES)}Write one of {', '.join(OBJECTIVES)}"
        raise InputError.of("E809", message, place.of_value(("objective",)), fix)
    conditions = tuple(
        Condition(text, place.of_value(("constraints", number)))
        for number, text in enumerate(file.constraints)
    )
    part_size = min(_MOST_POINTS, max(_FEWEST_POINTS, -(-num_points // _PARTS_WANTED)))
    grid = Sweep(document.data, name, bases, axes, conditions, {}, part_size, tuple(overrides))
    grid = replace(grid, profiles=grid.checked())
    for condition in conditions:
        condition.holds([grid.scenario(0)])
    return grid


def _data_of(value: object) -> Any:
    """Return the fields of a scenario or of its section; refuse other objects."""
    if not isinstance(value, BaseModel):
        raise wrong_type(value, "plain value", "write numbers, text, lists, dicts or scenarios")
    return data_of(value, only_set=True)


def _overlap(path: Path, other: Path) -> bool:
    """Whether one of two fields contains the other."""
    depth = min(len(path), len(other))
    return path[:depth] == other[:depth]


# ------------------------------------------------------------------------- axes


def _axes(document: YamlDocument) -> tuple[Axis, ...]:
    """Read all axes. No two of them set the same field or are the same column (E804)."""
    key, axes = document.positions.of_key, list[Axis]()
    for name, written in document.data["axes"].items():
        axis = _axis(document, name, written)
        for other in axes:
            pair, place = f"{other.name} and {name}", key(("axes", name))
            if other.name.lower() == name.lower():
                message = f"the axes {pair} are one column"
                raise InputError.of("E804", message, place, "SQL ignores case")
            both = [path for path in axis.paths for each in other.paths if _overlap(path, each)]
            if both:
                message = f"the axes {pair} both set {min(map(dotted, both))}"
                raise InputError.of("E804", message, place, "labels can set several fields")
        axes.append(axis)
    if not axes:
        raise InputError.of("E801", "the sweep has no axes", key(("axes",)), _EXAMPLE)
    return tuple(axes)


def _axis(document: YamlDocument, name: str, written: Any) -> Axis:
    """Read an axis: a list of values, a range, powers of two or labelled fields."""
    place, key, of_value = ("axes", name), document.positions.of_key, document.positions.of_value
    values: Sequence[Any] = ()
    if name.lower() in ("index", "status", "rule", *REPORTED):
        message = f"the results already have a column {name.lower()}"
        raise InputError.of("E808", message, key(place), "rename the axis")
    match written:
        case {"range": [int(start), int(stop), int(step)]} if len(written) == 1:
            if step > 0 and (stop - start) // step < _MOST_VALUES:
                values = range(start, stop + 1, step)
        case {"powers_of_two": [int(low), int(high)]} if len(written) == 1:
            values = [2**n for n in range(64) if low <= 2**n <= high]
        case {"range": _} | {"powers_of_two": _}:
            pass
        case dict() if 0 < len(written) <= _MOST_VALUES:
            labels = (_label(document, name, *label) for label in written.items())
            return Axis(name, tuple(written), tuple(labels))
        case list() if len(written) <= _MOST_VALUES:
            values = written
    if not values:
        message = f"{name}: {as_written(written)} has no values, or too many"
        raise InputError.of("E803", message, of_value(place), _EXAMPLE)
    path = field_path(name, key(place))
    settings, seen = list[tuple[Setting, ...]](), set[str]()
    for number, value in enumerate(values):
        at = (*place, number) if values is written else place
        setting = _settings(document, path, value, at)
        if not setting:
            message = f"{{}} sets no field of {name}"
            raise InputError.of("E803", message, of_value(at), _EXAMPLE)
        if (text := json.dumps(value)) in seen:
            message = f"{name} has the value {text} twice"
            raise InputError.of("E804", message, of_value(at), "keep one of them")
        seen.add(text)
        settings.append(setting)
    if path in _WITH_PATHS:
        values = [value for ((_, value, _),) in settings]
    return Axis(name, values, tuple(settings))


def _label(document: YamlDocument, axis: str, label: str, written: Any) -> tuple[Setting, ...]:
    """Return what a label sets; refuse one that sets nothing, or a field twice."""
    place, group = ("axes", axis, label), list[Setting]()
    for field, value in written.items() if isinstance(written, dict) else ():
        key = document.positions.of_key((*place, field))
        new = _settings(document, field_path(field, key), value, (*place, field))
        if not new or any(_overlap(each[0], other[0]) for each in new for other in group):
            code, what = ("E804", "twice") if new else ("E803", "to nothing")
            message = f"{axis}: {label} sets {field} {what}"
            raise InputError.of(code, message, key, "write it once")
        group += new
    if not group:
        message = f"{axis}: {label} is {as_written(written)}, but must set fields"
        raise InputError.of("E803", message, document.positions.of_value(place), _EXAMPLE)
    return tuple(group)


def _settings(document: YamlDocument, path: Path, value: Any, at: Path) -> tuple[Setting, ...]:
    """Return the fields that a value at a place of the file sets, with the place of each.

    The path of a file is resolved relative to the sweep file.
    """
    if path in _WITH_PATHS and isinstance(value, str) and (place := document.positions.of_key(at)):
        value = beside(value, place.file)
    return tuple(
        (leaf, each, document.positions.of_value((*at, *leaf[len(path) :])))
        for leaf, each in leaves(value, path)
    )


# ------------------------------------------------------------------------- base scenarios


def _bases(
    document: YamlDocument, axes: Sequence[Axis], overrides: tuple[str, ...], default_name: str
) -> dict[str, YamlDocument]:
    """Return all base scenarios by name, the default first, with the overrides applied."""
    written, place = document.data.get("base"), document.positions.of_value(BASE)
    settings = [each for axis in axes for of_value in axis.settings for each in of_value]
    named = [(value, location) for path, value, location in settings if path == BASE]
    documents: dict[str, YamlDocument] = {}
    if isinstance(written, dict):
        of_file = with_paths_beside(section(document, BASE), place.file if place else "")
        documents[str(written.get("name") or default_name)] = of_file
    elif written is not None:
        named.insert(0, (written, place))
    key = document.positions.of_key
    if written is None and not named:
        fix = "add base: table5_175b_present, or the path of a scenario file"
        raise InputError.of("E805", "the sweep has no base scenario", key(()), fix)
    paths = [path for axis in axes for path in axis.paths]
    for override in overrides:
        if changed := [path for path in paths if _overlap(path, path_of(override))]:
            message = f"an axis sets {min(map(dotted, changed))}, so this has no effect"
            fix = "remove the override, or remove the field from the axis"
            raise InputError.of("E806", message, Location(f"--set {override}"), fix)
    for name, location in named:
        if not (isinstance(name, str) and name):
            message = f"base must be the name of a scenario, not {as_written(name)}"
            fix = "write a name such as table5_175b_present, or the path of a scenario file"
            raise InputError.of("E805", message, location, fix)
        path = find_scenario(beside(name, location.file) if location else name, location)
        documents[name] = read_scenario(path)
    for name, base in documents.items():
        for override in overrides:
            base = apply_overrides(spell_out_words(base), [override])
        base = spell_out_words(base)
        documents[name] = YamlDocument({"name": name} | base.data, base.positions)
    return documents
