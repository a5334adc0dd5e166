"""The results folder of a sweep: `sweep.json`, and a Parquet file for each finished part.

A part is written under a temporary name and renamed when complete, so that a part exists complete
or not at all, even if the run is killed. What a run has to compute are the parts without a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from simtrain.base.extras import require
from simtrain.base.input_file import read_bytes
from simtrain.base.output_folder import as_path, replacing, writing_to
from simtrain.base.plain_data import keys
from simtrain.errors import InputError, Location
from simtrain.iteration.report.operators import Records
from simtrain.studies.answer import Answer
from simtrain.studies.sweep.fields import allow_only

if TYPE_CHECKING:
    import duckdb
    import pyarrow

HEADER = "sweep.json"
_MOST_BYTES = 64 << 20
_TABLE = "results"
# DuckDB's types of statements that return rows. PIVOT is of the type MULTI.
_QUERIES = frozenset({"SELECT", "EXPLAIN", "MULTI", "PRAGMA", "CALL"})
_OTHER_FOLDER = "give another folder, or remove this one if its results are no longer needed"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """A folder with the results of one sweep."""

    path: Path

    def part(self, number: int) -> Path:
        return self.path / "parts" / f"part-{number:06}.parquet"

    @property
    def files(self) -> list[Path]:
        return sorted((self.path / "parts").glob("part-*.parquet"))

    @property
    def header(self) -> Mapping[str, Any] | None:
        """What sweep.json says; None if there is none.

        Raises:
            InputError: it cannot be read (E822).
        """
        file = self.path / HEADER
        try:
            header = json.loads(read_bytes(file, _MOST_BYTES))
            for name, kind in {"hash": str, "part_size": int, "num_points": int}.items():
                if type(header[name]) is not kind:
                    raise ValueError(f"{name} is no {kind.__name__}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            message = f"cannot be read: {error!r}"
            raise InputError.of("E822", message, Location(str(file)), _OTHER_FOLDER) from error
        return header  # type: ignore[no-any-return]

    def open(self, header: Mapping[str, Any]) -> None:
        """Create the folder, or resume the same sweep in it.

        Raises:
            InputError: the folder has something else (E821), or cannot be written to.
        """
        place = Location(str(self.path))
        with writing_to(self.path, "results"):
            self.path.mkdir(parents=True, exist_ok=True)
            others = [each for each in self.path.iterdir() if not each.name.startswith(".")]
            if (known := self.header) is None:
                if others:
                    message = "the folder contains files, but no sweep"
                    raise InputError.of("E821", message, place, _OTHER_FOLDER)
                with replacing(self.path / HEADER) as file:
                    file.write_text(json.dumps(header, indent=2) + "\n", "utf-8")
                known = header
            (self.path / "parts").mkdir(exist_ok=True)
        if known["hash"] != header["hash"]:
            message = f'the folder contains the results of another sweep, "{known.get("name")}"'
            reason = "the sweep, a base scenario, a profile, an override or a version differs"
            raise InputError.of("E821", message, place, _OTHER_FOLDER, reason)

    def write(self, number: int, table: pyarrow.Table) -> None:
        """Write a part: its file exists complete, or not at all."""
        import pyarrow.parquet

        file = self.part(number)
        with writing_to(self.path, "results"), replacing(file, f".{file.stem}") as unfinished:
            pyarrow.parquet.write_table(table, unfinished, compression="zstd")


@dataclass(frozen=True, slots=True, repr=False)
class SweepRows(Answer):
    """The result of a query.

    Args:
        num_missing: points of the sweep in parts without a file, which the query did not see.
    """

    json_fields: ClassVar = keys("num_missing rows=named_rows")

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    num_missing: int = 0

    @property
    def headline(self) -> str:
        """The answer in one line."""
        return f"{len(self.rows):,} rows, {len(self.columns)} columns"

    @property
    def made_on(self) -> None:
        return None

    def records(self) -> Records:
        """Return the rows as dicts by column; values that JSON cannot represent are None."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def named_rows(self) -> Records:
        return self.records()


def query(folder: str | Path, sql: str) -> SweepRows:
    """Run a query over the table `results` of a sweep's folder: the rows of all finished parts.

    The query reads no other file and writes none, because colleagues share folders and queries.

    Raises:
        InputError: duckdb or pyarrow is not installed, the folder has no results (E820), a part is
            damaged, or the SQL is not one valid query (E826).
    """
    require("a query", "duckdb", "pyarrow")
    import duckdb

    results = SweepFolder(as_path(folder))
    files, header = [*map(str, results.files)], results.header
    if header is None or not files:
        message = "no part is finished yet" if header else "this folder contains no sweep"
        fix = "query again later" if header else "give the folder of simtrain sweep -o"
        raise InputError.of("E820", message, Location(str(results.path)), fix)
    columns = ""
    with duckdb.connect() as connection:
        try:
            connection.read_parquet(files, hive_partitioning=False).create_view(_TABLE)
            allow_only(connection, files)
            columns = ", ".join(connection.table(_TABLE).columns)
            names, rows = _answer(connection, sql)
        except (duckdb.Error, ValueError) as error:
            told, _, _ = str(error).partition(", due to the following Python exception")
            fix = f'the table is {_TABLE}, write names with a point as "batch.micro"; its columns: '
            fix += columns
            if isinstance(error, duckdb.PermissionException | ValueError):
                fix = f"write one select on the table {_TABLE}; save it with --format csv > FILE"
            raise InputError.of("E826", f"the query failed: {told}", fix=fix) from error
    size, total = header["part_size"], header["num_points"]
    present = sum(min(size, total - int(Path(file).stem[5:]) * size) for file in files)
    plain_rows = tuple(tuple(map(_plain, row)) for row in rows)
    return SweepRows(tuple(names), plain_rows, total - present)


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], list[Any]]:
    """Return the column names and the rows; refuse what is not one query in UTF-8."""
    sql.encode()
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise ValueError(f"it has {len(statements)} statements; write one per call")
    if (kind := statements[0].type.name) not in _QUERIES:
        raise ValueError(f"{kind} is not a query; write a statement that returns rows")
    answer = connection.execute(statements[0])
    names = [column[0] for column in answer.description or ()]
    if len(names) != len({*names}):
        raise ValueError("two of its columns have one name; write select mfu as other")
    return names, answer.fetchall()


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
