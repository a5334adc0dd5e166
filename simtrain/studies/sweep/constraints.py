"""Constraints: SQL conditions on a scenario's fields that every point of a sweep must satisfy.

DuckDB evaluates them on a table with a row per point and a column per name. Only the words of WORDS
are accepted beside names, numbers and text, so a constraint is one condition on one row.
"""

from __future__ import annotations

import atexit
import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from simtrain.base.extras import require
from simtrain.errors import InputError, Location
from simtrain.scenario import Scenario
from simtrain.studies.sweep.axes import describe_point, storable
from simtrain.studies.sweep.database import allow_only
from simtrain.studies.sweep.fields import attributes_by_name
from simtrain.studies.sweep.plan import Number, SweepPlan

if TYPE_CHECKING:
    import duckdb

WORDS = frozenset(
    {"and", "or", "not", "in", "between", "is", "null", "true", "false", "min", "max"}
)
"""Words of SQL that constraints may use."""
_MAX_LENGTH = 500
# -- begins a comment, and SQL reads -a ** b as another number than Python.
_TOKEN = re.compile(
    r"""'[^']*' | (?P<quoted>"[^"]*"?) | (?P<name>[^\W\d][\w.]*) | (?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?
    | (?P<other>--|/\*|\*\*|[^-+*/%<>=!(),\s])""",
    re.VERBOSE | re.IGNORECASE,
)
# DuckDB's own least and greatest ignore null.
_MACROS = "".join(
    f"create macro {name}(a, b) as list_sort([a, b], '{order}', 'nulls first')[1], "
    f"(a, b, c) as list_sort([a, b, c], '{order}', 'nulls first')[1];"
    for name, order in (("min", "asc"), ("max", "desc"))
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition of a sweep file.

    Args:
        text: as it is written.
        constants: numbers that it may name.
        place: of the text in the file.
    """

    text: str
    constants: Mapping[str, Number]
    place: Location | None = None

    @property
    def names(self) -> set[str]:
        """The constants and fields that it uses."""
        return {token[0] for token in _TOKEN.finditer(self.text) if _is_name(token)}

    def check(self) -> str:
        """Return the condition in SQL.

        Raises:
            InputError: it is not one expression (E810), has something that is not allowed (E811),
                or names something that is neither a constant nor a field (E812).
        """
        require("a constraint", "duckdb")
        import duckdb

        if len(self.text) > _MAX_LENGTH:
            fix = "split it into several constraints; all of them must hold"
            raise self.refusal("E810", f"is longer than {_MAX_LENGTH} characters", fix)
        for token in _TOKEN.finditer(self.text):
            self._check_token(token)
        sql = _TOKEN.sub(_in_sql, self.text)
        try:
            # TRY turns an error, such as a division by zero, into null. It takes one expression.
            for expression in (sql, f"try({sql})"):
                duckdb.SQLExpression(expression)
        except duckdb.Error as error:
            fix = "write a comparison such as tensor * pipeline * data == 64; join several with and"
            raise self.refusal("E810", f"cannot be read: {_told(error)}", fix) from error
        return f"try({sql})"

    def _check_token(self, token: re.Match[str]) -> None:
        """Refuse other characters and double quotes (E811), and unknown names (E812)."""
        code, message, fix = "E811", f"has {token[0]}, which is not allowed", ""
        known = (*self.constants, *attributes_by_name())
        if token["quoted"]:
            fix = f"write text in single quotes: '{token[0].strip(chr(34))}'"
        elif token["other"]:
            words = ", ".join(sorted(WORDS))
            fix = f"use names, numbers, 'text', + - * / // %, comparisons, {words}"
        elif _is_name(token) and token[0] not in known:
            code, message = "E812", f'names "{token[0]}", which is neither a constant nor a field'
            fix = f"the names here are {', '.join(name for name in known if '.' not in name)}"
        if fix:
            raise self.refusal(code, message, fix, token.start())

    def values(self, scenarios: Collection[Scenario]) -> list[bool | None]:
        """Return whether it holds for each scenario; None if it has no value.

        Raises:
            InputError: as for `check`; it is not a condition, or mixes numbers with text (E813).
        """
        sql = self.check()
        import duckdb
        import pyarrow

        # A constraint without names needs the rows, too.
        columns: dict[str, list[Any]] = {"": [None] * len(scenarios)}
        for name in self.names:
            columns[name] = [_value(name, self.constants, scenario) for scenario in scenarios]
        try:
            points = _database().cursor().from_arrow(pyarrow.table(columns))
            answer = points.select(duckdb.SQLExpression(sql))
            kind, rows = str(answer.types[0]), answer.fetchall()
        except (duckdb.Error, pyarrow.ArrowException) as error:
            fix = "compare numbers with numbers, text with 'text'; min and max take two or three"
            raise self.refusal("E813", f"cannot be evaluated: {_told(error)}", fix) from error
        if kind not in ("BOOLEAN", '"NULL"'):
            fix = "write a comparison: tensor * pipeline * data == num_gpus"
            raise self.refusal("E813", f"is a {kind}, neither true nor false", fix)
        return [holds for (holds,) in rows]

    def refusal(
        self, code: str, message: str, fix: str, offset: int = 0, reason: str | None = None
    ) -> InputError:
        """Build the error of the constraint, at an offset in its text."""
        place = self.place
        if place is not None and place.column is not None:
            # The source may differ from the text: escapes, a folded line.
            start = place.column - 1
            start += place.source_line[start : start + 1] in ('"', "'")
            if place.source_line[start:].startswith(self.text):
                place = replace(place, column=start + 1 + offset)
        return InputError.of(code, f'the constraint "{self.text}" {message}', place, fix, reason)


def _is_name(token: re.Match[str]) -> bool:
    return token["name"] is not None and token[0].lower() not in WORDS


def _in_sql(token: re.Match[str]) -> str:
    """Return a name in quotes, because of its points, and other tokens as written."""
    return f'"{token[0]}"' if _is_name(token) else token[0]


def _value(name: str, constants: Mapping[str, Number], scenario: Scenario) -> Any:
    """Return a constant, or a field of a scenario; None if the scenario lacks its section."""
    if name in constants:
        return storable(constants[name])
    value: Any = scenario
    for key in attributes_by_name()[name].split("."):
        value = getattr(value, key, None)
    return storable(value)


def removed_by(plan: SweepPlan, points: Mapping[int, Scenario]) -> dict[int, int]:
    """Map each point that the constraints remove to the number of the first that does not hold.

    Args:
        plan: the sweep.
        points: scenarios by the index of their point.

    Raises:
        InputError: a constraint is not a condition, or has no value at a point (E813).
    """
    removed: dict[int, int] = {}
    for number, constraint in enumerate(constraints_of(plan)):
        left = {index: point for index, point in points.items() if index not in removed}
        values = constraint.values(left.values())
        if None in values:
            index = [*left][values.index(None)]
            reason = f"at point {index}: {describe_point(plan.cells(index))}"
            message = "has no value: a field is null, or a number cannot be computed"
            fix = 'write "x is null or ..." if x may be null; avoid x / 0 and numbers above 2^63'
            raise constraint.refusal("E813", message, fix, reason=reason)
        removed |= {index: number for index, holds in zip(left, values, strict=True) if not holds}
    return removed


def constraints_of(plan: SweepPlan) -> list[Constraint]:
    """Return the constraints of a sweep; a plan that was read from sweep.json has no places."""
    places = zip_longest(plan.constraints, plan.places)
    return [Constraint(text, plan.constants, place) for text, place in places]


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """Open one database per process. Only sweeps with constraints load it."""
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    connection.execute(_MACROS)
    # 1 / 0 is an error, not infinite.
    connection.execute("set global ieee_floating_point_ops = false")
    allow_only(connection)
    # DuckDB's bindings print warnings if a connection outlives the interpreter's modules.
    atexit.register(_database.cache_clear)
    return connection


def _told(error: Exception) -> str:
    return str(error).partition("\n")[0]
