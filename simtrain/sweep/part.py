"""A part of a sweep: its points evaluated, as the bytes of a Parquet file and in numbers.

`run_part` is all that a worker does. It needs nothing but the plan and a number, writes nothing,
and gives the same bytes wherever it runs.
"""

from __future__ import annotations

import functools
import gc
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.errors import InputError, Problem
from simtrain.evaluation import Evaluation, Evaluator
from simtrain.scenario import RULES, Scenario
from simtrain.sweep.axes import LARGEST, Cell, in_words
from simtrain.sweep.constraints import Constraint, ConstraintError
from simtrain.sweep.counts import Best, Counts, better
from simtrain.sweep.plan import BREAKDOWN, Plan
from simtrain.sweep.points import Points

if TYPE_CHECKING:
    import pyarrow

OK, DOES_NOT_FIT, ILLEGAL = "ok", "does_not_fit", "illegal"
_METADATA_KEY = b"simtrain"
_INTEGERS = {"peak_bytes", "capacity_bytes", "num_gpus"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part: its number, the bytes of its Parquet file, and its counts."""

    number: int
    content: bytes
    counts: Counts


class PartError(Exception):
    """The content of a file is not that of a part of this sweep."""


def run_part(plan: Plan, number: int) -> Part:
    """Evaluate the points of a part, in the order of the grid.

    Raises:
        InputError: a constraint cannot be computed for one of the points.
    """
    with _without_garbage_collection():
        return _part(plan, number)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Leave cycles of objects to be found between parts.

    Points leave no cycles, but fill caches, which each full collection would search anew: a tenth
    of a sweep's time, and a quarter of its first minute's.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _part(plan: Plan, number: int) -> Part:
    excluded: Counter[int] = Counter()
    kept: list[tuple[int, Scenario]] = []
    constraints, points = plan.readable_constraints(), Points(plan)
    for index in plan.indices(number):
        scenario = points.scenario(index)
        removed_by = first_unsatisfied(plan, constraints, scenario, index)
        if removed_by is None:
            kept.append((index, scenario))
        else:
            excluded[removed_by] += 1
    found = {index: _row(scenario) for index, scenario in sorted(kept, key=_alike)}
    rows = [{"index": index} | plan.cells(index) | found[index] for index, _ in kept]
    counts = _counts(rows, excluded, plan.objective)
    return Part(number, _encoded(plan, number, rows, counts), counts)


def first_unsatisfied(
    plan: Plan, constraints: Sequence[Constraint], scenario: Scenario, index: int
) -> int | None:
    """The number of the first constraint that a point does not satisfy.

    Raises:
        InputError: one cannot be computed for this point.
    """
    for number, constraint in enumerate(constraints):
        try:
            if not constraint.holds(scenario):
                return number
        except ConstraintError as error:
            message = f'the constraint "{plan.constraints[number]}" {error}'
            reason = f"this is so at point {index}, {in_words(plan.cells(index))}"
            place = plan.places[number]
            raise InputError([Problem(error.code, message, place, reason, error.fix)]) from error
    return None


def _alike(point: tuple[int, Scenario]) -> tuple[object, ...]:
    """Brings together what shares a machine and an order of tasks, which are then at hand."""
    _, scenario = point
    split, machine = scenario.parallelism, (scenario.cluster, repr(scenario.hardware))
    return *machine, split.pipeline, split.interleave, scenario.num_microbatches


@functools.cache
def _evaluator() -> Evaluator:
    """One for each process, so that what it has read and priced is kept between parts."""
    return Evaluator()


def _row(scenario: Scenario) -> Row:
    """The results' columns of one point, without those that say which point it is."""
    start: Row = {"num_gpus": scenario.num_gpus}
    # Asked here first: an error with its remedies takes far longer than a code.
    broken = next((rule.code for rule in RULES if rule.check(scenario)), None)
    if broken:
        return start | {"status": ILLEGAL, "rule": broken}
    try:
        evaluation = _evaluator().evaluate(scenario)
    except InputError as error:
        return start | {"status": ILLEGAL, "rule": error.problems[0].code}
    return start | _results(evaluation)


def _results(evaluation: Evaluation) -> Row:
    row: Row = {
        "status": OK if evaluation.run else DOES_NOT_FIT,
        "peak_bytes": evaluation.peak_bytes,
        "capacity_bytes": evaluation.capacity_bytes,
    }
    if run := evaluation.run:
        row |= {name: getattr(run, name) for name in ("iteration_time_s", "tokens_per_s")}
        row |= {"mfu": run.mfu, "hfu": run.hfu}
        row |= {name: getattr(run.breakdown, name.partition("_")[2]) for name in BREAKDOWN}
    return row


def _counts(rows: Sequence[Row], excluded: Counter[int], objective: str) -> Counts:
    statuses = Counter(row["status"] for row in rows)
    rules = Counter(row["rule"] for row in rows if row["status"] == ILLEGAL)
    return Counts(
        statuses[OK],
        statuses[DOES_NOT_FIT],
        dict(sorted(rules.items())),
        dict(sorted(excluded.items())),
        functools.reduce(better, _bests(rows, objective), None),
    )


def _bests(rows: Sequence[Row], objective: str) -> Iterator[Best]:
    names = ("tokens_per_s", "iteration_time_s", "mfu")
    for row in rows:
        if row["status"] == OK:
            yield Best(row["index"], objective, row[objective], *(row[name] for name in names))


def _encoded(plan: Plan, number: int, rows: Sequence[Row], counts: Counts) -> bytes:
    """The rows as a Parquet file, with checksums, and with what it is in its metadata."""
    import pyarrow

    about = {"sweep": plan.digest, "part": number, "part_size": plan.part_size}
    text = json.dumps(about | {"counts": counts.to_json()}, sort_keys=True)
    schema = schema_of(plan).with_metadata({_METADATA_KEY: text.encode()})
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    for name in _INTEGERS & columns.keys():
        columns[name] = [*map(_storable, columns[name])]
    return _file_of(pyarrow.table(columns, schema=schema))


def _storable(value: Cell) -> Cell:
    """Null for an integer that Parquet has none for: more bytes than the memory of all machines."""
    return None if isinstance(value, int) and abs(value) > LARGEST else value


def _file_of(table: pyarrow.Table) -> bytes:
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def schema_of(plan: Plan) -> pyarrow.Schema:
    """The columns of the results: the point, what became of it, and what is reported of it."""
    import pyarrow

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    axes = [(axis.name, types.get(axis.column_type, pyarrow.string())) for axis in plan.axes]
    reported = [(name, types[int if name in _INTEGERS else float]) for name in plan.report]
    status = [("status", pyarrow.string()), ("rule", pyarrow.string())]
    return pyarrow.schema([("index", pyarrow.int64()), *axes, *status, *reported])


def decoded(plan: Plan, number: int, content: bytes) -> Counts:
    """The counts of a part whose file holds `content`, once every byte of it was looked at.

    Raises:
        PartError: it is not a Parquet file, is damaged, or is another part or another sweep's.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        buffer = pyarrow.BufferReader(content)
        file = pyarrow.parquet.ParquetFile(buffer, page_checksum_verification=True)
        # Threads of Arrow that still run when the process exits can abort it: start none.
        table = file.read(use_threads=False)
        about = json.loads(table.schema.metadata[_METADATA_KEY])
        found = about["sweep"], about["part"], about["part_size"]
        counts = Counts.from_json(about["counts"])
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise PartError(f"it cannot be read: {error}") from error
    if found != (plan.digest, number, plan.part_size):
        raise PartError("it belongs to another part or to another sweep")
    # Checksums cover the values and not what is said of them; writing it again covers the rest.
    if _file_of(table) != content:
        raise PartError("some of its bytes have changed")
    return counts
