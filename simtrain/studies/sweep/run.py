"""Run a sweep: compute the parts without a file, and write each one when it is done."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from concurrent.futures import wait as wait_for
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import wait
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from simtrain.base.output_folder import as_path
from simtrain.base.process import MOST_WORKERS, num_processors, without_garbage_collection
from simtrain.base.request import takes
from simtrain.errors import InputError, Location
from simtrain.scenario import RULES, Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep import SweepRequest
from simtrain.studies.sweep.grid import BREAKDOWN, REPORTED, Sweep, load_sweep
from simtrain.studies.sweep.results import SweepFolder, SweepRows, query

if TYPE_CHECKING:
    import pyarrow

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


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run."""

    num_parts: int
    num_points: int
    done: int = 0
    found: int = 0
    num_done: int = 0


@dataclass(frozen=True)
class SweepRun:
    """A sweep, the folder of its results, and the number of processes that compute its parts."""

    sweep: Sweep
    folder: SweepFolder
    workers: int = 1

    @classmethod
    def open(cls, request: SweepRequest, folder: SweepFolder) -> SweepRun:
        """Load a sweep, and create or resume its folder.

        Raises:
            InputError: as for `sweep`.
        """
        request.check()
        sweep = load_sweep(request.sweep, request.overrides)
        folder.open(sweep.header)
        workers = max(1, min(request.workers or num_processors(), sweep.num_parts))
        return cls(sweep, folder, workers)

    def compute(self, on_progress: Callable[[Progress], None]) -> Progress:
        """Compute the parts that have no file.

        Raises:
            InputError: the folder cannot be written to, a condition has no value at a point, or a
                worker dies (E850).
        """
        sizes = [len(self.sweep.indices(number)) for number in range(self.sweep.num_parts)]
        there = {number for number in range(len(sizes)) if self.folder.part(number).exists()}
        num_there = sum(map(sizes.__getitem__, there))
        progress = Progress(len(sizes), sum(sizes), len(there), len(there), num_there)
        on_progress(progress)
        executor = local_executor(self.workers)
        try:
            for number, table in self._tables(executor, there):
                self.folder.write(number, table)
                num_done = progress.num_done + sizes[number]
                progress = replace(progress, done=progress.done + 1, num_done=num_done)
                on_progress(progress)
        finally:
            executor.shutdown(cancel_futures=True)
        return progress

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
    """Evaluate the points of a part; return their rows in grid order.

    Raises:
        InputError: a condition has no value at one of the points (E813).
    """
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
    evaluator = _evaluator()
    try:
        evaluation = evaluator.evaluate(scenario)
    except InputError as error:
        return row | {"rule": error.problems[0].code}
    row["status"] = "ok" if evaluation.run else "does_not_fit"
    row |= {"peak_bytes": evaluation.peak_bytes, "capacity_bytes": evaluation.capacity_bytes}
    if run := evaluation.run:
        row |= {
            name: getattr(run, name) for name in ("iteration_time_s", "tokens_per_s", "mfu", "hfu")
        }
        row |= {name: getattr(run.breakdown, name.partition("_")[2]) for name in BREAKDOWN}
    return row
