"""Run a sweep: compute the parts without a file, and write each one when it is done."""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from concurrent.futures import wait as wait_for
from contextlib import nullcontext
from decimal import Decimal
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from simtrain.base.extras import require
from simtrain.base.input_file import read_bytes
from simtrain.base.output_folder import as_path, replacing, writing_to
from simtrain.base.plain_data import keys
from simtrain.base.process import MOST_WORKERS, num_processors, without_garbage_collection
from simtrain.base.request import takes
from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location
from simtrain.iteration.report.operators import Records
from simtrain.scenario import RULES, Scenario
from simtrain.studies.answer import Answer
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.requests import SweepRequest, check_whole
from simtrain.studies.sweep.grid import BREAKDOWN, REPORTED, Sweep, allow_only, load_sweep

if TYPE_CHECKING:
    import duckdb
    import pyarrow

HEADER = "sweep.json"
_MOST_BYTES, _MOST_WORKERS = 64 << 20, 10_000
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
        """What sweep.json says; None if there is none. One that cannot be read is E822."""
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
        """Create the folder, or resume the same sweep in it; one with something else is E821."""
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
    """The result of a query, which did not see `num_missing` points: their parts have no file."""

    json_fields: ClassVar = keys("num_missing rows=named_rows")

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    num_missing: int = 0

    @property
    def headline(self) -> str:
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


P = ParamSpec("P")
T = TypeVar("T")
Row = dict[str, Any]
_INTEGERS = {"peak_bytes", "capacity_bytes", "num_gpus"}


@takes(SweepRequest)
def sweep(request: SweepRequest) -> SweepRows:
    """Simulate every scenario of a grid, and return the rows of the results, or of a query.

    Call it again with the same folder to resume an interrupted sweep.

    Raises:
        InputError: the sweep, an override, a base scenario or a query is wrong, the folder cannot
            be written to, or duckdb or pyarrow is not installed.
    """
    if request.query is not None:
        return query(request.sweep, request.query)  # type: ignore[arg-type]
    place = nullcontext(request.out) if request.out is not None else TemporaryDirectory()
    with place as path:
        run = SweepRun.open(request, SweepFolder(as_path(path)))
        run.compute(request.on_progress)
        return query(run.folder.path, 'select * from results order by "index"')


@dataclass(frozen=True)
class SweepRun:
    """A sweep, the folder of its results, and the number of processes that compute its parts."""

    sweep: Sweep
    folder: SweepFolder
    workers: int = 1

    @classmethod
    def open(cls, request: SweepRequest, folder: SweepFolder) -> SweepRun:
        """Load a sweep, and create or resume its folder."""
        check_whole("E834", "workers", request.workers, 1, _MOST_WORKERS)
        sweep = load_sweep(request.sweep, request.overrides)
        folder.open(sweep.header)
        workers = max(1, min(request.workers or num_processors(), sweep.num_parts))
        return cls(sweep, folder, workers)

    def compute(self, on_progress: Callable[[str, int, int], None]) -> int:
        """Compute the parts that have no file; return how many had one. Dead workers are E850."""
        sizes = [len(self.sweep.indices(number)) for number in range(self.sweep.num_parts)]
        there = {number for number in range(len(sizes)) if self.folder.part(number).exists()}
        done = sum(map(sizes.__getitem__, there))
        on_progress("points", done, sum(sizes))
        executor = local_executor(self.workers)
        try:
            for number, table in self._tables(executor, there):
                self.folder.write(number, table)
                done += sizes[number]
                on_progress("points", done, sum(sizes))
        finally:
            executor.shutdown(cancel_futures=True)
        return len(there)

    def _tables(self, executor: Executor, there: set[int]) -> Iterator[tuple[int, pyarrow.Table]]:
        """Yield the parts that are not there, each when it is done."""
        missing = (number for number in range(self.sweep.num_parts) if number not in there)
        running: dict[Future[pyarrow.Table], int] = {}
        # Two parts per worker, so that none waits for this process to write a file.
        in_flight = 2 * self.workers if self.workers > 1 else 1
        try:
            while True:
                for number in islice(missing, in_flight - len(running)):
                    running[executor.submit(run_part, self.sweep, number)] = number
                if not running:
                    return
                for future in wait_for(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenExecutor as error:
            raise InputError.of(
                "E850",
                "a worker died before its part was done",
                Location(str(self.folder.path)),
                "run the same command again, which resumes; with --workers 1 it shows the error",
                "the system kills processes when memory runs out, and libraries can crash",
            ) from error


class SerialExecutor(Executor):
    """Runs each call in this process, before `submit` returns."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def local_executor(num_workers: int) -> Executor:
    """Create an executor with `num_workers` processes; one worker is this process itself."""
    if num_workers < 2:
        return SerialExecutor()
    # Spawn, not fork: a forked copy has the locks of this process' threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    num_workers = min(num_workers, MOST_WORKERS or num_workers)
    return ProcessPoolExecutor(num_workers, context, _start_worker)


def _start_worker() -> None:
    # Ctrl-C also reaches workers: they exit silently, and the parent reports the interruption.
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # Without it, the workers of a killed process would wait for work forever.
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        os._exit(1)


@without_garbage_collection()
def run_part(sweep: Sweep, number: int) -> pyarrow.Table:
    """Evaluate the points of a part; return their rows in grid order."""
    import pyarrow

    kept = sweep.kept({index: sweep.scenario(index) for index in sweep.indices(number)})
    rows = {
        index: {"index": index} | sweep.cells(index) | _row(scenario)
        for index, scenario in sorted(kept.items(), key=_alike)
    }
    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    axes = [(axis.name, types.get(axis.column_type, pyarrow.string())) for axis in sweep.axes]
    results = [(name, types[int if name in _INTEGERS else float]) for name in REPORTED]
    status = [("status", pyarrow.string()), ("rule", pyarrow.string())]
    schema = pyarrow.schema([("index", pyarrow.int64()), *axes, *status, *results])
    return pyarrow.Table.from_pylist([rows[index] for index in kept], schema)


def _alike(point: tuple[int, Scenario]) -> tuple[object, ...]:
    """Sort key that groups points with the same machine and pipeline order, to reuse caches."""
    _, scenario = point
    split, machine = scenario.parallelism, (scenario.cluster, repr(scenario.hardware))
    return *machine, split.pipeline, split.interleave, scenario.num_microbatches


# One evaluator per process, so that its caches live across parts.
_evaluator = functools.cache(Evaluator)


def _row(scenario: Scenario) -> Row:
    """The result columns of one point, without the axes."""
    row: Row = {"status": "illegal", "num_gpus": scenario.num_gpus}
    # Check the rules first: building an error with remedies takes far longer than a code.
    if broken := next((rule.code for rule in RULES if rule.check(scenario)), None):
        return row | {"rule": broken}
    try:
        evaluation = _evaluator().evaluate(scenario)
    except InputError as error:
        return row | {"rule": error.problems[0].code}
    row["status"] = "ok" if evaluation.run else "does_not_fit"
    row |= {"peak_bytes": evaluation.peak_bytes, "capacity_bytes": evaluation.capacity_bytes}
    if run := evaluation.run:
        breakdown = run.breakdown
        row |= {
            name: getattr(run, name) for name in ("iteration_time_s", "tokens_per_s", "mfu", "hfu")
        }
        row |= {name: getattr(breakdown, name.partition("_")[2]) for name in BREAKDOWN}
    return row
