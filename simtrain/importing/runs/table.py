"""Read tables of measured runs (CSV), one run a line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError, Location
from simtrain.importing.runs.columns import (
    BYTES,
    COLUMN_OF,
    KINDS,
    MEASURED,
    OUT_OF_MEMORY,
    PEAK_OF,
    SECONDS,
    TEXTS,
    spelled,
)
from simtrain.importing.runs.row import RefusedRow, Row
from simtrain.studies.validation.measured import (
    MeasuredRun,
    PeakOf,
    Runs,
    RunSettings,
    in_one_line,
    wrong_peak,
    wrong_time,
)

_MOST_BYTES = 64 << 20


def read_table(file: Path, settings: RunSettings) -> TableRuns:
    """Read the cells of a table.

    Args:
        file: a CSV file whose first line names its columns (`aliases.toml`).
        settings: what the command line says about all runs.

    Raises:
        InputError: the file cannot be read, is empty, or lacks a column (E891).
    """
    text = read_text(file, _MOST_BYTES)
    # A comment has no comma: "# GPUs,..." is a heading.
    comments = re.match(r"(?:[ \t]*(?:#[^,\n]*)?\n)*", text)
    num_comments = comments[0].count("\n") if comments else 0
    # A quote that is never closed is an error, not one cell with the rest of the file.
    lines = csv.reader(io.StringIO(text[comments.end() if comments else 0 :]), strict=True)
    try:
        headings = [spelled(heading) for heading in next(lines, [])]
        rows = [
            (lines.line_num + num_comments, cells) for cells in lines if any(map(str.strip, cells))
        ]
    except csv.Error as error:
        place = Location(str(file), lines.line_num + num_comments)
        fix = "close the quote that is open there, and keep cells below 131,072 characters"
        raise InputError.of("E891", f"the table is broken: {error}", place, fix) from None
    place = Location(str(file), 1 + num_comments, 1, ",".join(headings))
    if not rows:
        fix = "write a line of column names, and a line for each run"
        raise InputError.of("E891", "the table has no runs", place, fix)
    if repeated := sorted({name for name in headings if name and headings.count(name) > 1}):
        fix = "give each column another name"
        raise InputError.of("E891", f"columns are repeated: {', '.join(repeated)}", place, fix)
    return TableRuns(file, headings, rows, settings)


def _has_arguments(headings: Sequence[str]) -> bool:
    return not {*TEXTS["arguments"]}.isdisjoint(headings)


@dataclass(frozen=True)
class TableRuns(Runs):
    """The rows of a table as runs, each made when it is reached: a long table has many scenarios.

    Args:
        file: its file.
        headings: names of the columns, spelled as `columns.spelled` does.
        rows: the line of each row, and its cells.
        settings: what the command line says about all runs.
    """

    file: Path
    headings: Sequence[str]
    rows: Sequence[tuple[int, list[str]]]
    settings: RunSettings

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MeasuredRun]:
        seen: dict[tuple[str, ...], int] = {}
        for line, cells in self.rows:
            yield self._run(line, cells, seen)

    @cached_property
    def _unread(self) -> list[str]:
        """The columns that are not read; with arguments, no other column of settings is."""
        kinds = {"texts"} if _has_arguments(self.headings) else {*KINDS}
        read = {name for name, (kind, _) in COLUMN_OF.items() if kind in kinds} | MEASURED
        return [name for name in self.headings if name and name not in read and "." not in name]

    def _run(self, line: int, cells: list[str], seen: dict[tuple[str, ...], int]) -> MeasuredRun:
        """Read a row; `seen` has the lines of earlier rows by their cells."""
        row = Row({name: cell.strip() for name, cell in zip(self.headings, cells, strict=False)})
        name = row.text("name") or f"line {line}"
        run = MeasuredRun(name, row.text("model"), str(self.file), line)
        try:
            if len(cells) > len(self.headings):
                raise RefusedRow(f"{len(cells)} cells for {len(self.headings)} columns")
            key = tuple(cell for title, cell in row.cells.items() if title not in TEXTS["name"])
            if (first := seen.setdefault(key, line)) != line:
                raise RefusedRow(f"the same as line {first}")
            row.check(self.settings)
            return self._measured(run, row)
        except RefusedRow as refused:
            return replace(run, refusal=str(refused))
        except InputError as error:
            return replace(run, refusal=in_one_line(error))

    def _measured(self, run: MeasuredRun, row: Row) -> MeasuredRun:
        """Add the scenario of a row and its measurements to what names it."""
        location = Location(run.file, run.line)
        scenario, assumed = row.scenario(run.model, self.settings, location)
        if self._unread:
            unread = ", ".join(self._unread)
            assumed.append(f"these columns, which are not read, do not matter: {unread}")
        time_s = peak_bytes = parameters = None
        peak_of = PeakOf.GPU
        if number := row.number([*SECONDS]):
            time_s = number[0] * SECONDS[number[1]]
        elif number := row.number(TEXTS["tokens_per_s_per_gpu"]):
            tokens = scenario.batch.global_ * scenario.model.seq_length
            time_s = tokens / (number[0] * scenario.num_gpus)
        if time_s is not None and number and (why := wrong_time(time_s)):
            raise RefusedRow(f"{number[1]}: {why}; correct it, or the unit of the column")
        if number := row.number([*BYTES]):
            peak_bytes, peak_of = number[0] * BYTES[number[1]], PEAK_OF.get(number[1], PeakOf.GPU)
            if why := wrong_peak(peak_bytes):
                raise RefusedRow(f"{number[1]}: {why}; correct it, or the unit of the column")
        if number := row.number(TEXTS["parameters_billion"]):
            parameters = number[0]
        ran = row.text("outcome").lower() not in OUT_OF_MEMORY
        if ran and time_s is None and peak_bytes is None:
            raise RefusedRow("neither a time nor a peak was measured")
        return replace(
            run,
            scenario=scenario,
            iteration_time_s=time_s,
            peak_bytes=peak_bytes,
            peak_of=peak_of,
            ran=ran,
            assumed=assumed,
            parameters_billion=parameters,
        )
