"""Fields of a scenario by name, for axes and for the conditions of a sweep."""

from __future__ import annotations

import atexit
import difflib
import functools
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.base.extras import require
from simtrain.base.strict_yaml import Path
from simtrain.base.strict_yaml.reading import dotted
from simtrain.base.strict_yaml.validation import legal_keys
from simtrain.errors import InputError, Location
from simtrain.scenario import Scenario
from simtrain.scenario.schema import STACK_DEFAULTS

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
        """Return whether it holds for each scenario; None if it has no value.

        Raises:
            InputError: it is no condition of SQL on the fields of a point (E810).
        """
        require("a constraint", "duckdb", "pyarrow")
        import duckdb
        import pyarrow

        attributes = attributes_by_name()
        names = {token[1] for token in _TOKEN.finditer(self.text)} & attributes.keys()
        columns: dict[str, list[Any]] = {"": [None] * len(scenarios)}
        for name in names:
            columns[name] = [_value(scenario, attributes[name]) for scenario in scenarios]
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


def _value(scenario: Scenario, attribute: str) -> Any:
    """Return a field; None if the scenario lacks its section."""
    value: Any = scenario
    for key in attribute.split("."):
        value = getattr(value, key, None)
    return value


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
