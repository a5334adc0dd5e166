"""SQL queries over the results of a sweep; they also work while the sweep runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from simtrain.base.extras import require
from simtrain.base.output_folder import as_path
from simtrain.base.plain_data import PlainData, keys
from simtrain.errors import InputError, Location
from simtrain.iteration.report.rows import Records, Rows
from simtrain.studies.sweep.database import allow_only
from simtrain.studies.sweep.folder import PLAN_FILE, SweepFolder

if TYPE_CHECKING:
    import duckdb

_TABLE = "results"
# DuckDB's types of statements that return rows. PIVOT is of the type MULTI.
_QUERIES = frozenset({"SELECT", "EXPLAIN", "MULTI", "PRAGMA", "CALL"})


@dataclass(frozen=True, slots=True)
class Answer(Rows, PlainData):
    """The result of a query; repeated column names get a number.

    Args:
        columns: names of the columns.
        rows: the rows.
        num_missing: points of the sweep in parts without a file, which the query did not see:
            they are not simulated yet, or their files were deleted.
    """

    json_fields: ClassVar = keys("num_missing rows=named_rows")

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    num_missing: int = 0

    def __repr__(self) -> str:
        return f"<Answer: {len(self.rows):,} rows, {len(self.columns)} columns>"

    def records(self) -> Records:
        """Return the rows as dicts by column; values that JSON cannot represent are None."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def named_rows(self) -> Records:
        """The rows as objects by column; values that JSON cannot represent are null."""
        return self.records()


def query(folder: str | Path, sql: str) -> Answer:
    """Run a query over the table `results` of a sweep's folder: the rows of all finished parts.

    The query reads no other file and writes none, because colleagues share folders and queries.

    Raises:
        InputError: duckdb or pyarrow is not installed, the folder has no results, a part is
            damaged, or the SQL is not one valid query.
    """
    require("a query", "duckdb", "pyarrow")
    import duckdb

    results = SweepFolder(as_path(folder))
    files, num_missing = _parts(results)
    with duckdb.connect() as connection:
        connection.read_parquet(files, hive_partitioning=False).create_view(_TABLE)
        allow_only(connection, files)
        columns = ", ".join(connection.table(_TABLE).columns)
        try:
            names, rows = _answer(connection, sql)
        except (duckdb.Error, ValueError) as error:
            fix = f'the table is {_TABLE}, write names with a point as "batch.micro"; its columns: '
            fix += columns
            if isinstance(error, duckdb.PermissionException | ValueError):
                fix = f"write one select on the table {_TABLE}; save its rows with --csv > FILE"
            raise InputError.of("E826", f"the query failed: {_told(error)}", fix=fix) from error
    plain_rows = tuple(tuple(map(_plain, row)) for row in rows)
    return Answer(tuple(_distinct(names)), plain_rows, num_missing)


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], list[Any]]:
    """Return the column names and the rows.

    Raises:
        ValueError: the SQL is not one statement that returns rows, or is not valid UTF-8.
    """
    sql.encode()
    statements = connection.extract_statements(sql)
    if not statements:
        raise ValueError("it is empty")
    if len(statements) > 1:
        raise ValueError(f"it has {len(statements)} statements; write one per call")
    if (kind := statements[0].type.name) not in _QUERIES:
        raise ValueError(f"{kind} is not a query; write a statement that returns rows")
    answer = connection.execute(statements[0])
    return [column[0] for column in answer.description or ()], answer.fetchall()


def _told(error: Exception) -> str:
    """DuckDB's message, without the traceback of a missing module."""
    return str(error).partition(", due to the following Python exception")[0]


def _parts(folder: SweepFolder) -> tuple[list[str], int]:
    place = Location(str(folder.path))
    if not (folder.path / PLAN_FILE).is_file():
        fix = "give the folder that was passed to simtrain sweep --out"
        raise InputError.of("E820", "this folder contains no sweep", place, fix)
    files, num_missing = folder.finished()
    if not files:
        raise InputError.of("E820", "no part is finished yet", place, "query again later")
    return [*map(str, files)], num_missing


def _distinct(names: Sequence[str]) -> Iterator[str]:
    """Make names unique: the second "mfu" becomes "mfu_2", unless that name is taken."""
    taken = set(names)
    seen: set[str] = set()
    for name in names:
        free_name, number = name, 1
        while free_name in seen or (number > 1 and free_name in taken):
            number += 1
            free_name = f"{name}_{number}"
        seen.add(free_name)
        yield free_name


def _plain(value: Any) -> Any:
    """Convert a value for JSON and tables: dates to text, NaN and infinity to null."""
    match value:
        case Decimal():
            return float(value)
        case float():
            return value if math.isfinite(value) else None
        case bool() | int() | str() | None:
            return value
        case list() | tuple():
            return [_plain(element) for element in value]
        case dict():
            return {str(key): _plain(element) for key, element in value.items()}
    return str(value)
