"""A part of a sweep: its evaluated points as the bytes of a Parquet file, with counts.

A worker only calls `run_part`. It needs the plan and the part's number, writes nothing, and returns
the same bytes on every machine.
"""

from __future__ import annotations

import functools
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.base.function_caches import without_garbage_collection
from simtrain.errors import InputError
from simtrain.scenario import RULES, Scenario
from simtrain.studies.cost import cost_of_tokens
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.objectives.objective import Objective
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.sweep.axes import storable
from simtrain.studies.sweep.constraints import removed_by
from simtrain.studies.sweep.counts import BestPoint, Counts, better
from simtrain.studies.sweep.plan import BREAKDOWN, SweepPlan
from simtrain.studies.sweep.points import Points

if TYPE_CHECKING:
    import pyarrow

OK, DOES_NOT_FIT, ILLEGAL = "ok", "does_not_fit", "illegal"
_METADATA_KEY = b"simtrain"
_INTEGERS = {"peak_bytes", "capacity_bytes", "num_gpus"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SweepPart:
    """A finished part: its number, the bytes of its Parquet file, and its counts."""

    number: int
    content: bytes
    counts: Counts


class PartError(Exception):
    """A file is not a valid part of this sweep."""


@without_garbage_collection()
def run_part(plan: SweepPlan, number: int) -> SweepPart:
    """Evaluate the points of a part in grid order.

    Raises:
        InputError: a constraint has no value at one of the points (E813).
    """
    points = Points(plan)
    scenarios = {index: points.scenario(index) for index in plan.indices(number)}
    removed = removed_by(plan, scenarios)
    kept = [point for point in scenarios.items() if point[0] not in removed]
    cells = {index: _row(scenario, plan) for index, scenario in sorted(kept, key=_alike)}
    rows = [{"index": index} | plan.cells(index) | cells[index] for index, _ in kept]
    counts = _counts(rows, Counter(removed.values()), plan.objective)
    return SweepPart(number, _encoded(plan, number, rows, counts), counts)


def _alike(point: tuple[int, Scenario]) -> tuple[object, ...]:
    """Sort key that groups points with the same machine and pipeline order, to reuse caches."""
    _, scenario = point
    split, machine = scenario.parallelism, (scenario.cluster, repr(scenario.hardware))
    return *machine, split.pipeline, split.interleave, scenario.num_microbatches


@functools.cache
def _evaluator(extrapolation: bool, draws: int | None) -> Evaluator:
    """One evaluator per process, so its caches live across parts."""
    return Evaluator(extrapolation=extrapolation, draws=draws)


def _row(scenario: Scenario, plan: SweepPlan) -> Row:
    """The result columns of one point, without the axes; costs only if they are needed."""
    objectives = [objective for objective in OBJECTIVES.values() if objective.field in plan.report]
    extrapolation = any(objective.needs_extrapolation for objective in objectives)
    draws = max((objective.draws for objective in objectives if objective.draws), default=None)
    evaluator = _evaluator(extrapolation, draws)
    start: Row = {"num_gpus": storable(scenario.num_gpus)}
    # Check the rules first: building an error with remedies takes far longer than a code.
    broken = next((rule.code for rule in RULES if rule.check(scenario)), None)
    if broken:
        return start | {"status": ILLEGAL, "rule": broken}
    try:
        evaluation = evaluator.evaluate(scenario)
    except InputError as error:
        return start | {"status": ILLEGAL, "rule": error.problems[0].code}
    row = start | _results(evaluation, objectives)
    if plan.has_costs and (run := evaluation.run):
        profile = evaluator.profile_of(scenario)
        row |= cost_of_tokens(scenario.num_gpus, run.tokens_per_s, profile)
    return row


def _results(evaluation: Evaluation, objectives: Sequence[Objective]) -> Row:
    row: Row = {
        "status": OK if evaluation.run else DOES_NOT_FIT,
        "peak_bytes": storable(evaluation.peak_bytes),
        "capacity_bytes": storable(evaluation.capacity_bytes),
    }
    if run := evaluation.run:
        row |= {each.field: each.quantity(each.key(evaluation)[0]) for each in objectives}
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


def _bests(rows: Sequence[Row], objective: str) -> Iterator[BestPoint]:
    names = ("tokens_per_s", "iteration_time_s", "mfu")
    for row in rows:
        # A profile may lack the entry that an objective needs.
        if row["status"] == OK and row[objective] is not None:
            yield BestPoint(row["index"], objective, row[objective], *(row[name] for name in names))


def _encoded(plan: SweepPlan, number: int, rows: Sequence[Row], counts: Counts) -> bytes:
    """Encode the rows as a Parquet file with checksums, and sweep, part and counts as metadata."""
    import pyarrow

    about = {"sweep": plan.digest, "part": number, "part_size": plan.part_size}
    text = json.dumps(about | {"counts": counts.to_json()}, sort_keys=True)
    schema = schema_of(plan).with_metadata({_METADATA_KEY: text.encode()})
    return _file_of(pyarrow.Table.from_pylist(rows, schema))


def _file_of(table: pyarrow.Table) -> bytes:
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def schema_of(plan: SweepPlan) -> pyarrow.Schema:
    """The columns of the results: the point, its status, and the reported figures."""
    import pyarrow

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    axes = [(axis.name, types.get(axis.column_type, pyarrow.string())) for axis in plan.axes]
    reported = [(name, types[int if name in _INTEGERS else float]) for name in plan.report]
    status = [("status", pyarrow.string()), ("rule", pyarrow.string())]
    return pyarrow.schema([("index", pyarrow.int64()), *axes, *status, *reported])


def decoded(
    content: bytes, sweep: str, number: int, part_size: int, *, is_same_writer: bool = True
) -> Counts:
    """Validate every byte of a part's file and return its counts.

    Args:
        content: the bytes of the file.
        sweep: digest of the plan.
        number: number of the part.
        part_size: points per part.
        is_same_writer: this version of pyarrow wrote the file. Another one may write other bytes,
            so only its checksums can be compared.

    Raises:
        PartError: the content is not Parquet, is damaged, or belongs to another part or sweep.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        buffer = pyarrow.BufferReader(content)
        file = pyarrow.parquet.ParquetFile(buffer, page_checksum_verification=True)
        # No threads: Arrow's threads can abort the process if they still run at exit.
        table = file.read(use_threads=False)
        about = json.loads(table.schema.metadata[_METADATA_KEY])
        recorded = about["sweep"], about["part"], about["part_size"]
        counts = Counts.from_json(about["counts"])
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise PartError(f"it cannot be read: {error}") from error
    if recorded != (sweep, number, part_size):
        raise PartError("it belongs to another part or to another sweep")
    # Checksums cover only the values; writing the table again checks the rest of the bytes.
    if is_same_writer and _file_of(table) != content:
        raise PartError("some of its bytes have changed")
    return counts
