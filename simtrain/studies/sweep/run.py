"""Run a sweep: find missing parts, compute them, and write each one when it is done."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory

from simtrain.base.output_folder import as_path
from simtrain.base.request import takes
from simtrain.errors import InputError, Location
from simtrain.studies.sweep.axes import describe_point
from simtrain.studies.sweep.counts import Counts
from simtrain.studies.sweep.executor_kinds import EXECUTOR_KINDS
from simtrain.studies.sweep.folder import SweepFolder
from simtrain.studies.sweep.load import load_plan
from simtrain.studies.sweep.part import PartError, SweepPart, run_part
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.query import Answer, query
from simtrain.studies.sweep.request import SweepRequest
from simtrain.studies.sweep.workers import PartWorkers, Shard

# A part lost more often than _DEATHS_TOGETHER runs alone, to identify the part that kills workers.
# A part lost more often than _MAX_DEATHS stops the sweep.
_DEATHS_TOGETHER, _MAX_DEATHS = 1, 3


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


@takes(SweepRequest)
def sweep(request: SweepRequest) -> Answer:
    """Simulate every scenario of a grid, and return the rows of the results.

    Call it again with the same folder to resume an interrupted sweep.

    Raises:
        InputError: the sweep, an override or a base scenario is wrong, the folder cannot be written
            to, the executor cannot be used, or duckdb or pyarrow is not installed.
    """
    place = nullcontext(request.out) if request.out is not None else TemporaryDirectory()
    with place as path:
        folder = SweepFolder(as_path(path))
        run_sweep(*opened(request, folder), request.on_progress)
        return query(folder.path, 'select * from results order by "index"')


def opened(
    request: SweepRequest, folder: SweepFolder
) -> tuple[SweepPlan, SweepFolder, PartWorkers]:
    """Return the plan, the folder and the workers of a sweep; the folder is created or resumed.

    Raises:
        InputError: as for `sweep`.
    """
    request.check()
    shard = Shard.of(request.shard)
    plan = load_plan(request.sweep, request.overrides, request.part_size, request.max_points)
    plan = folder.open(plan, request.part_size)
    kind = EXECUTOR_KINDS[request.executor]
    return plan, folder, kind.open(plan, shard, request.workers, request.address)


def run_sweep(
    plan: SweepPlan,
    folder: SweepFolder,
    workers: PartWorkers,
    on_progress: ProgressCallback = lambda progress: None,
) -> Progress:
    """Compute the missing parts of a sweep.

    Args:
        plan: the sweep, as returned by `folder.open`.
        folder: the results folder.
        workers: what computes the parts.
        on_progress: called after each part.

    Raises:
        InputError: the folder cannot be written to, a constraint has no value at a point, or
            workers keep dying.
    """
    shard = workers.shard
    with folder.locked(f"{shard.number}-of-{shard.count}"):
        folder.remove_leftovers(shard.parts(plan))
        progress, missing = _scan(plan, folder, shard, on_progress)
        work = _Dispatcher(plan, folder, on_progress, progress, deque(missing))
        while work.missing:
            executor = workers.start()
            try:
                work.use(executor, workers.num_in_flight)
            finally:
                executor.shutdown(cancel_futures=True)
    return work.progress


def _scan(
    plan: SweepPlan, folder: SweepFolder, shard: Shard, on_progress: ProgressCallback
) -> tuple[Progress, Sequence[int]]:
    """Return the progress so far, and the numbers of missing or damaged parts."""
    progress = Progress(len(shard.parts(plan)), shard.num_points(plan))
    missing, sweep = [], plan.digest
    for number in shard.parts(plan):
        try:
            counts = folder.read(number, sweep, plan.part_size)
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
