"""Questions in SQL to the results of a sweep, also while it runs."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from simtrain.errors import InputError, Location, Problem
from simtrain.sweep.folder import PARTS_FOLDER, PLAN_FILE

_TABLE = "results"


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows that a query gives; columns of the same name are told apart by a number."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Rows by column; what JSON has no number for is null."""
        return {"rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows]}

    def to_csv(self) -> str:
        """The rows below their columns' names, in full precision; null is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


def query(folder: Path, sql: str) -> Answer:
    """Ask for what is in `results`: the rows of the parts that are finished.

    Raises:
        InputError: the folder has no results, one of its parts is damaged, or the SQL is wrong.
    """
    import duckdb

    files = _parts(folder)
    with duckdb.connect() as connection:
        try:
            connection.read_parquet(files).create_view(_TABLE)
        except duckdb.Error as error:
            fix = "give the simtrain sweep command again: it does damaged parts again"
            raise _refusal("E827", f"the results cannot be read: {error}", folder, fix) from error
        columns = ", ".join(connection.table(_TABLE).columns)
        try:
            found = connection.execute(sql)
            names, rows = [one[0] for one in found.description or ()], found.fetchall()
        except duckdb.Error as error:
            fix = f'the table is {_TABLE}, write names with a point as "batch.micro"; its columns: '
            problem = Problem("E826", f"the query failed: {error}", fix=fix + columns)
            raise InputError([problem]) from error
    return Answer(tuple(_distinct(names)), tuple(tuple(map(_plain, row)) for row in rows))


def _parts(folder: Path) -> list[str]:
    if not (folder / PLAN_FILE).is_file():
        fix = "name the folder that simtrain sweep FILE --out wrote to"
        raise _refusal("E820", "this folder holds no sweep", folder, fix)
    files = sorted(map(str, (folder / PARTS_FOLDER).glob("part-*.parquet")))
    if not files:
        raise _refusal("E820", "no part is finished yet", folder, "ask again when one is")
    return files


def _refusal(code: str, message: str, folder: Path, fix: str) -> InputError:
    return InputError([Problem(code, message, Location(str(folder)), fix=fix)])


def _distinct(names: Sequence[str]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}_{seen[name]}"


def _plain(value: Any) -> Any:
    """A value as JSON and tables have it: dates and the like as text, no NaN."""
    match value:
        case Decimal():
            return float(value)
        case float():
            return value if math.isfinite(value) else None
        case bool() | int() | str() | None:
            return value
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
    return str(value)
