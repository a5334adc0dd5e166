"""Run a sweep: find missing parts, compute them, and write each one when it is done."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simtrain.base.output_folder import as_path
from simtrain.base.request import takes
from simtrain.errors import InputError, Location
from simtrain.studies.sweep.axes import describe_point
from simtrain.studies.sweep.counts import Counts
from simtrain.studies.sweep.executors import local_executor
from simtrain.studies.sweep.folder import SweepFolder
from simtrain.studies.sweep.load import MANY_POINTS, load_plan
from simtrain.studies.sweep.part import PartError, SweepPart, run_part
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.query import Answer, query

# A part lost more often than _DEATHS_TOGETHER runs alone, to identify the part that kills workers.
# A part lost more often than _MAX_DEATHS stops the sweep.
_DEATHS_TOGETHER, _MAX_DEATHS = 1, 3


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` runs that share a sweep: every `count`-th part, from part `number` on."""

    number: int = 0
    count: int = 1

    def parts(self, plan: SweepPlan) -> range:
        """The numbers of the shard's parts."""
        return range(self.number, plan.num_parts, self.count)

    def num_points(self, plan: SweepPlan) -> int:
        """Number of points in the shard's parts."""
        parts = self.parts(plan)
        missing = plan.num_parts * plan.part_size - plan.num_points
        has_last = bool(parts) and parts[-1] == plan.num_parts - 1
        return len(parts) * plan.part_size - missing * has_last

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run.

    Args:
        num_parts, num_points: in the shard.
        done: parts on disk.
        found: parts that were on disk before this run.
        damaged: numbers of damaged parts, which are computed again.
        num_lost: parts lost with a worker, which are computed again.
        counts: points of the parts on disk.
    """

    num_parts: int
    num_points: int
    done: int = 0
    found: int = 0
    damaged: tuple[int, ...] = ()
    num_lost: int = 0
    counts: Counts = field(default_factory=Counts)

    def and_part(self, counts: Counts, *, was_there: bool = False) -> Progress:
        """Return the progress with one more part."""
        return replace(
            self,
            done=self.done + 1,
            found=self.found + was_there,
            counts=self.counts + counts,
        )


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What a sweep is asked for.

    Args:
        sweep: a sweep file, the name of a shipped sweep, or what such a file contains:
            {"base": "gpt2_1_5b", "axes": {"batch.micro": [1, 2, 4]}}. The base may be a scenario.
        out: folder for the results, which `query` reads too. None keeps only the rows.
        overrides: overrides of the base scenarios, such as "model.seq_length=4096".
        workers: processes; with 1 this process computes everything. A script with several workers
            needs `if __name__ == "__main__":`, because workers import it.
        max_points: the largest grid that is accepted.
        on_progress: called after each part.
    """

    sweep: str | Path | Mapping[str, Any]
    out: str | Path | None = None
    overrides: Sequence[str] = ()
    _: KW_ONLY
    workers: int = 1
    max_points: int = MANY_POINTS
    on_progress: ProgressCallback = lambda progress: None


@takes(SweepRequest)
def sweep(request: SweepRequest) -> Answer:
    """Simulate every scenario of a grid, and return the rows of the results.

    Call it again with the same folder to resume an interrupted sweep.

    Raises:
        InputError: the sweep, an override or a base scenario is wrong, the folder cannot be written
            to, or duckdb or pyarrow is not installed.
    """
    plan = load_plan(request.sweep, request.overrides, max_points=request.max_points)
    place = nullcontext(request.out) if request.out is not None else TemporaryDirectory()
    with place as path:
        folder = SweepFolder(as_path(path))
        plan = folder.open(plan)
        make_executor = partial(local_executor, request.workers)
        in_flight = 1 if request.workers < 2 else 2 * request.workers
        run_sweep(plan, folder, make_executor, in_flight, on_progress=request.on_progress)
        return query(folder.path, 'select * from results order by "index"')


def run_sweep(
    plan: SweepPlan,
    folder: SweepFolder,
    make_executor: Callable[[], Executor],
    num_in_flight: int,
    shard: Shard = Shard(),
    on_progress: ProgressCallback = lambda progress: None,
) -> Progress:
    """Compute the missing parts of a sweep.

    Args:
        plan: the sweep, as returned by `folder.open`.
        folder: the results folder.
        make_executor: creates an executor; called again when an executor breaks.
        num_in_flight: parts submitted at a time.
        shard: the share of the parts that this run computes.
        on_progress: called after each part.

    Raises:
        InputError: the folder cannot be written to, a constraint cannot be evaluated, or workers
            keep dying.
    """
    with folder.locked(f"{shard.number}-of-{shard.count}"):
        folder.remove_leftovers(shard.parts(plan))
        progress, missing = _scan(plan, folder, shard, on_progress)
        work = _Dispatcher(plan, folder, on_progress, progress, deque(missing))
        while work.missing:
            executor = make_executor()
            try:
                work.use(executor, num_in_flight)
            finally:
                executor.shutdown(cancel_futures=True)
    return work.progress


def _scan(
    plan: SweepPlan, folder: SweepFolder, shard: Shard, on_progress: ProgressCallback
) -> tuple[Progress, Sequence[int]]:
    """Return the progress so far, and the numbers of missing or damaged parts."""
    progress = Progress(len(shard.parts(plan)), shard.num_points(plan))
    missing = []
    for number in shard.parts(plan):
        try:
            counts = folder.read(plan, number)
        except PartError:
            progress = replace(progress, damaged=(*progress.damaged, number))
            counts = None
        if counts is None:
            missing.append(number)
        else:
            progress = progress.and_part(counts, was_there=True)
        on_progress(progress)
    return progress, missing


@dataclass
class _Dispatcher:
    """Hands parts to executors and writes the results."""

    plan: SweepPlan
    folder: SweepFolder
    on_progress: ProgressCallback
    progress: Progress
    missing: deque[int]
    deaths: Counter[int] = field(default_factory=Counter)

    def use(self, executor: Executor, num_in_flight: int) -> None:
        """Compute parts until none is missing or the executor breaks."""
        in_flight: dict[Future[SweepPart], int] = {}
        broken = False
        while in_flight or (self.missing and not broken):
            broken = broken or not self.hand_out(executor, in_flight, num_in_flight)
            self.put_back(self.collect(in_flight))

    def hand_out(
        self, executor: Executor, in_flight: dict[Future[SweepPart], int], num_in_flight: int
    ) -> bool:
        """Submit parts; False if the executor is broken."""
        while self.missing and self.may_begin(self.missing[0], in_flight.values(), num_in_flight):
            try:
                in_flight[executor.submit(run_part, self.plan, self.missing[0])] = self.missing[0]
            except BrokenExecutor:
                return False
            self.missing.popleft()
        return True

    def may_begin(self, number: int, in_flight: Collection[int], num_in_flight: int) -> bool:
        """Whether a part may start now; parts lost repeatedly run alone."""
        alone = any(self.deaths[part] > _DEATHS_TOGETHER for part in (number, *in_flight))
        return len(in_flight) < (1 if alone else num_in_flight)

    def collect(self, in_flight: dict[Future[SweepPart], int]) -> list[int]:
        """Write finished parts and return the numbers of lost ones."""
        lost = []
        for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
            number = in_flight.pop(future)
            if isinstance(future.exception(), BrokenExecutor):
                lost.append(number)
                continue
            part = future.result()
            self.folder.write(part)
            self.progress = self.progress.and_part(part.counts)
            self.on_progress(self.progress)
        return sorted(lost)

    def put_back(self, lost: Sequence[int]) -> None:
        """Queue lost parts again; refuse a part that probably kills its workers (E850)."""
        self.deaths.update(lost)
        self.missing.extendleft(reversed(lost))
        self.progress = replace(self.progress, num_lost=self.progress.num_lost + len(lost))
        for number in lost:
            if self.deaths[number] > _MAX_DEATHS:
                raise self._cause_of_deaths(number)

    def _cause_of_deaths(self, number: int) -> InputError:
        indices = self.plan.indices(number)
        ends = (describe_point(self.plan.cells(index)) for index in (indices[0], indices[-1]))
        points = " to ".join(dict.fromkeys(ends))
        message = (
            f"workers died {self.deaths[number]} times while they computed part {number}, points "
            f"{indices[0]} to {indices[-1]}: {points}"
        )
        reason = "the system kills processes when memory runs out, and libraries can crash"
        fix = (
            "run the same command with --workers 1 and without --executor, which needs the least "
            "memory and shows the error; finished parts are kept"
        )
        return InputError.of("E850", message, Location(str(self.folder.path)), fix, reason)
