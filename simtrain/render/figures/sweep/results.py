"""Results of a sweep, read from its folder, and queries for figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.render.figures.sweep.header import SweepHeader, read_header

if TYPE_CHECKING:
    import pyarrow

Cell = str | int | float | bool | None
OK, DOES_NOT_FIT = "ok", "does_not_fit"
MODELS_AXIS = "base"
LARGER_IS_BETTER = frozenset({"tokens_per_s", "mfu", "hfu"})
# Files that a sweep writes; copies under other names are ignored.
_PART = re.compile(r"part-[0-9]{6,}\.parquet")
_LONGEST_WORDS = 32
_NOT_COMPARABLE = frozenset({"num_gpus", "capacity_bytes"})


@dataclass(frozen=True)
class Results:
    """Table of a sweep's results; the axes are the columns between `index` and `status`.

    Args:
        folder: the sweep's results folder.
        table: all rows.
        header: the sweep's name, objective and profiles.
        panel_axis: figures have one panel per value of this axis (by default the base scenarios,
            because different models are not comparable).
    """

    folder: Path
    table: pyarrow.Table
    header: SweepHeader
    panel_axis: str | None = None

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.header.name

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes in the sweep file's order."""
        names = self.table.column_names
        return tuple(names[names.index("index") + 1 : names.index("status")])

    @property
    def comparable(self) -> tuple[str, ...]:
        """Reported columns in which more, or less, is better."""
        names = self.table.column_names
        return tuple(
            name for name in names[names.index("rule") + 1 :] if name not in _NOT_COMPARABLE
        )

    @cached_property
    def ran(self) -> pyarrow.Table:
        """Rows of the points that are legal and fit in memory."""
        import pyarrow.compute

        return self.table.filter(pyarrow.compute.equal(self.table["status"], OK))

    def counts_by_status(self) -> dict[str, int]:
        """Number of points by status."""
        counts = self.table["status"].value_counts().to_pylist()
        return {values["values"]: values["counts"] for values in counts}

    def has(self, *names: str) -> bool:
        """Whether all these columns were reported."""
        return set(names) <= set(self.table.column_names)

    def values(self, axis: str) -> list[Cell]:
        """Values of an axis: null first, numbers ascending, text in the grid's order."""
        first = group(self.table, [axis]).aggregate([("index", "min")]).to_pylist()
        ordered = sorted(first, key=lambda row: row["index_min"])
        values = [row[axis] for row in ordered]
        if any(isinstance(value, str) for value in values):
            return values
        return sorted(values, key=lambda value: (value is not None, value))

    @property
    def panels(self) -> list[Cell]:
        """Values with a panel each; one empty name for a single panel."""
        return self.values(self.panel_axis) if self.panel_axis else [""]

    def of_panel(self, panel: Cell, rows: pyarrow.Table) -> pyarrow.Table:
        """Select the rows of one panel."""
        import pyarrow.compute

        if self.panel_axis is None:
            return rows
        column = rows[self.panel_axis]
        if panel is None:
            return rows.filter(pyarrow.compute.is_null(column))
        return rows.filter(pyarrow.compute.equal(column, panel))

    def ranked(self, panel: Cell, column: str) -> pyarrow.Table:
        """Return the points of a panel that ran, the best first; ties in the grid's order."""
        order = "descending" if column in LARGER_IS_BETTER else "ascending"
        rows = self.of_panel(panel, self.ran)
        return rows.sort_by([(column, order), ("index", "ascending")])

    def varying(self) -> list[str]:
        """Axes with several values, except the panels' axis, in the sweep file's order."""
        names = (name for name in self.axes if name != self.panel_axis)
        return [name for name in names if len(self.values(name)) > 1]

    def combinations(self, *axes: str) -> int:
        """Number of combinations of these axes' values in the sweep."""
        return int(group(self.table, list(axes)).aggregate([]).num_rows)


def group(rows: pyarrow.Table, by: list[str]) -> pyarrow.TableGroupBy:
    """Group rows by their values of some columns; groups are in the order of their first rows.

    With threads, Arrow returns the groups in the order in which its threads finish, and a picture
    would have its labels in another order each time.
    """
    return rows.group_by(by, use_threads=False)


def best_values(rows: pyarrow.Table, by: list[str], value: str) -> dict[tuple[Cell, ...], float]:
    """Return the best value of a column for each combination of the axes `by`."""
    how = "max" if value in LARGER_IS_BETTER else "min"
    groups = group(rows, by).aggregate([(value, how)]).to_pylist()
    return {tuple(row[name] for name in by): row[f"{value}_{how}"] for row in groups}


def effect(results: Results, axis: str, value: str) -> float:
    """Return the largest ratio between the best results at two values of an axis."""
    ran = results.ran
    of_panels = (
        best_values(results.of_panel(panel, ran), [axis], value) for panel in results.panels
    )
    return max(_ratio(list(values.values())) for values in of_panels if values)


def _ratio(values: list[float]) -> float:
    """Return the ratio of the largest to the smallest; infinite if only the smallest is zero."""
    least, most = min(values), max(values)
    return 1.0 if least == most else most / least if least > 0 else float("inf")


def load_results(folder: Path, panels: str | None = None) -> Results:
    """Load the results of a finished or running sweep.

    Args:
        folder: the sweep's results folder.
        panels: the axis with one panel per value; by default the base scenarios.

    Raises:
        InputError: E861 the folder has no results, E862 a part cannot be read, E863 no point ran,
            E864 the axis does not exist.
    """
    import pyarrow

    parts = (folder / "parts").glob("part-*.parquet")
    files = sorted(file for file in parts if _PART.fullmatch(file.name))
    if not files:
        raise InputError.of(
            "E861",
            "this folder has no results of a sweep",
            Location(str(folder)),
            "write the folder that `simtrain sweep FILE --out FOLDER` wrote",
            "a results folder has Parquet files in its folder parts",
        )
    results = Results(folder, pyarrow.concat_tables(_read_alike(files)), read_header(folder))
    if results.ran.num_rows == 0:
        raise InputError.of(
            "E863",
            "no point of this sweep ran: nothing to draw",
            Location(str(folder)),
            "choose axis values that are legal and fit; the column rule names the broken rules",
            f"each of its {results.table.num_rows} points is illegal or does not fit in memory",
        )
    if panels is not None:
        check_name(results, panels, results.axes, "--panels")
    elif MODELS_AXIS in results.axes:
        panels = MODELS_AXIS
    return replace(results, panel_axis=panels)


def _read_alike(files: Sequence[Path]) -> Iterator[pyarrow.Table]:
    """Read the parts; refuse a part whose columns differ from the first part's."""
    import pyarrow.parquet

    schema: pyarrow.Schema | None = None
    for file in files:
        try:
            # Read as a single file, because parent folders named a=b would become columns.
            table = pyarrow.parquet.ParquetFile(file).read().replace_schema_metadata(None)
        except (pyarrow.ArrowException, OSError) as error:
            raise _bad_part(file, str(error)) from error
        if not {"index", "status", "rule"} <= set(table.column_names):
            raise _bad_part(file, "it lacks the columns index, status or rule")
        schema = table.schema if schema is None else schema
        if table.schema != schema:
            raise _bad_part(file, f"its columns differ from those of {files[0].name}")
        yield table


def _bad_part(file: Path, reason: str) -> InputError:
    fix = "run the sweep again with the same folder to compute this part again"
    return InputError.of("E862", "this part cannot be read", Location(str(file)), fix, reason)


def check_name(results: Results, name: str, known: Iterable[str], option: str) -> None:
    """Check that the results can draw the name given for an option.

    Raises:
        InputError: E864, with the nearest possible name.
    """
    names = list(known)
    if name in names:
        return
    fix = f"{did_you_mean(name, names)}Write one of: {', '.join(names)}"
    message = f'{option}: the results have no "{name}" to draw'
    if not names and option == "--value":
        message = "no column that can be compared was reported"
        fix = "sweep with `report: [mfu, iteration_time_s]`, or without report, into another folder"
    elif not names:
        message = "no axis has several values"
        fix = "write several values for an axis of the sweep"
    raise InputError.of("E864", message, Location(str(results.folder)), fix)


def short_words(value: Any) -> str:
    """Format a value on one line, shortened to fit a figure."""
    words = " ".join(as_scalar(value).split())
    return words if len(words) <= _LONGEST_WORDS else f"{words[: _LONGEST_WORDS - 1]}…"
