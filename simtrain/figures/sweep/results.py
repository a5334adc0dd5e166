"""The results of a sweep as they lie in its folder, and questions that pictures ask of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.errors import InputError, Location, Problem, did_you_mean
from simtrain.strict_yaml import as_scalar

if TYPE_CHECKING:
    import pyarrow

Cell = str | int | float | bool | None
OK, DOES_NOT_FIT = "ok", "does_not_fit"
MODELS_AXIS = "base"
LARGER_IS_BETTER = frozenset({"tokens_per_s", "mfu", "hfu"})
# What a sweep writes; not the copies that people and programs put beside it.
_PART = re.compile(r"part-[0-9]{6,}\.parquet")
_LONGEST_WORDS = 32
_NEVER_JUDGED = frozenset({"num_gpus", "capacity_bytes"})


@dataclass(frozen=True)
class Results:
    """A sweep's rows; its axes are the columns between `index` and `status`.

    Each value of `panel_axis` is drawn by itself: the figures of different models say nothing of
    each other.
    """

    folder: Path
    table: pyarrow.Table
    panel_axis: str | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes, in the file's order."""
        names = self.table.column_names
        return tuple(names[names.index("index") + 1 : names.index("status")])

    @property
    def judged(self) -> tuple[str, ...]:
        """The reported columns of which more, or less, is better."""
        names = self.table.column_names
        return tuple(name for name in names[names.index("rule") + 1 :] if name not in _NEVER_JUDGED)

    @cached_property
    def ran(self) -> pyarrow.Table:
        """The rows of what was legal and fitted."""
        import pyarrow.compute

        return self.table.filter(pyarrow.compute.equal(self.table["status"], OK))

    def has(self, *names: str) -> bool:
        """Whether all these columns were reported."""
        return set(names) <= set(self.table.column_names)

    def values(self, axis: str) -> list[Cell]:
        """The values of an axis: null, then numbers from the least on; words as in the grid."""
        first = self.table.group_by(axis).aggregate([("index", "min")]).to_pylist()
        ordered = sorted(first, key=lambda row: row["index_min"])
        found = [row[axis] for row in ordered]
        if any(isinstance(value, str) for value in found):
            return found
        return sorted(found, key=lambda value: (value is not None, value))

    @property
    def panels(self) -> list[Cell]:
        """What is drawn by itself, or one empty name."""
        return self.values(self.panel_axis) if self.panel_axis else [""]

    def of_panel(self, panel: Cell, rows: pyarrow.Table) -> pyarrow.Table:
        """Those of the rows that belong to one panel."""
        import pyarrow.compute

        if self.panel_axis is None:
            return rows
        column = rows[self.panel_axis]
        if panel is None:
            return rows.filter(pyarrow.compute.is_null(column))
        return rows.filter(pyarrow.compute.equal(column, panel))

    def varying(self) -> list[str]:
        """The axes that have several values and are not the panels, in the file's order."""
        names = (name for name in self.axes if name != self.panel_axis)
        return [name for name in names if len(self.values(name)) > 1]


def best(rows: pyarrow.Table, by: list[str], value: str) -> dict[tuple[Cell, ...], float]:
    """The best of a column for each combination of `by` that has one."""
    how = "max" if value in LARGER_IS_BETTER else "min"
    found = rows.group_by(by).aggregate([(value, how)]).to_pylist()
    return {tuple(row[name] for name in by): row[f"{value}_{how}"] for row in found}


def effect(results: Results, axis: str, value: str) -> float:
    """How many times better the best at one value of an axis is than that at another, at most."""
    ran = results.ran
    of_panels = (best(results.of_panel(panel, ran), [axis], value) for panel in results.panels)
    return max(_ratio(list(found.values())) for found in of_panels if found)


def _ratio(values: list[float]) -> float:
    """The largest over the smallest; nothing is infinitely less than something."""
    least, most = min(values), max(values)
    return 1.0 if least == most else most / least if least > 0 else float("inf")


def load_results(folder: Path, panels: str | None = None) -> Results:
    """The results of a sweep, also while it runs; `panels` is an axis, by default the models'.

    Raises:
        InputError: E861 there are none, E862 a part cannot be read, E863 none of the points ran,
            E864 there is no such axis.
    """
    import pyarrow

    parts = (folder / "parts").glob("part-*.parquet")
    files = sorted(file for file in parts if _PART.fullmatch(file.name))
    if not files:
        problem = Problem(
            "E861",
            "there are no results of a sweep here",
            Location(str(folder)),
            "they are Parquet files in its folder parts",
            "give the folder that `simtrain sweep FILE --out FOLDER` wrote to",
        )
        raise InputError([problem])
    results = Results(folder, pyarrow.concat_tables(_read_alike(files)))
    if results.ran.num_rows == 0:
        problem = Problem(
            "E863",
            "no point of this sweep ran, so there is nothing to draw",
            Location(str(folder)),
            f"of {results.table.num_rows} points each is illegal or does not fit in memory",
            "give the axes values that are legal and fit; the column rule says what was broken",
        )
        raise InputError([problem])
    if panels is not None:
        check_name(results, panels, results.axes, "--panels")
    elif MODELS_AXIS in results.axes:
        panels = MODELS_AXIS
    return replace(results, panel_axis=panels)


def _read_alike(files: Sequence[Path]) -> Iterator[pyarrow.Table]:
    """The parts; one with other columns than the first is another sweep's."""
    import pyarrow.parquet

    schema: pyarrow.Schema | None = None
    for file in files:
        try:
            # As a file of its own: folders named a=b around it would become columns.
            table = pyarrow.parquet.ParquetFile(file).read().replace_schema_metadata(None)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError([_bad_part(file, str(error))]) from error
        if not {"index", "status", "rule"} <= set(table.column_names):
            raise InputError([_bad_part(file, "it lacks the columns index, status or rule")])
        schema = table.schema if schema is None else schema
        if table.schema != schema:
            raise InputError([_bad_part(file, f"its columns are not those of {files[0].name}")])
        yield table


def _bad_part(file: Path, reason: str) -> Problem:
    fix = "run the sweep again with the same folder: it does such a part again"
    return Problem("E862", "this part cannot be read", Location(str(file)), reason, fix)


def check_name(results: Results, name: str, known: Iterable[str], option: str) -> None:
    """Refuse a name that the results do not have.

    Raises:
        InputError: E864, with the nearest that they have.
    """
    names = list(known)
    if name in names:
        return
    fix = f"{did_you_mean(name, names)}There are: {', '.join(names)}"
    message = f'{option}: the results have no "{name}" that could be drawn'
    if not names and option == "--value":
        message = "nothing was reported of which more, or less, is better"
        fix = "sweep with `report: [mfu, iteration_time_s]`, or without report, into another folder"
    elif not names:
        message = "no axis varies that could be drawn"
        fix = "give an axis of the sweep several values"
    raise InputError([Problem("E864", message, Location(str(results.folder)), fix=fix)])


def short_words(value: Any) -> str:
    """What of a value can be written beside a picture."""
    words = " ".join(as_scalar(value).split())
    return words if len(words) <= _LONGEST_WORDS else f"{words[: _LONGEST_WORDS - 1]}…"
