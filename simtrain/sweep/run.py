"""Runs a sweep: finds what is missing, has it computed, and writes it part by part."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field, replace

from simtrain.errors import InputError, Location, Problem
from simtrain.sweep.axes import in_words
from simtrain.sweep.counts import Counts
from simtrain.sweep.folder import SweepFolder
from simtrain.sweep.part import Part, PartError, run_part
from simtrain.sweep.plan import Plan

# How often a part may be lost before it is computed with no other beside it, so that it is known
# which one is the cause; and how often before it is held to be.
_DEATHS_TOGETHER, _MAX_DEATHS = 1, 3


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` runs that share a sweep: every `count`-th part; `number` counts from 0."""

    number: int = 0
    count: int = 1

    def parts(self, plan: Plan) -> range:
        """The numbers of its parts."""
        return range(self.number, plan.num_parts, self.count)

    def num_points(self, plan: Plan) -> int:
        """The points of all its parts."""
        parts = self.parts(plan)
        missing = plan.num_parts * plan.part_size - plan.num_points
        has_last = bool(parts) and parts[-1] == plan.num_parts - 1
        return len(parts) * plan.part_size - missing * has_last

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: parts on disk and what is in them, those found there, damaged, lost."""

    num_parts: int
    num_points: int
    done: int = 0
    found: int = 0
    damaged: tuple[int, ...] = ()
    num_lost: int = 0
    counts: Counts = field(default_factory=Counts)

    def and_part(self, counts: Counts, *, was_there: bool = False) -> Progress:
        """With one more part."""
        return replace(
            self,
            done=self.done + 1,
            found=self.found + was_there,
            counts=self.counts + counts,
        )


Tell = Callable[[Progress], None]


def run_sweep(
    plan: Plan,
    folder: SweepFolder,
    make_executor: Callable[[], Executor],
    num_in_hand: int,
    shard: Shard = Shard(),
    tell: Tell = lambda progress: None,
) -> Progress:
    """Compute what is missing of a sweep in an opened folder, telling how far it is.

    `make_executor` is called again where an executor takes no more; it is given at most
    `num_in_hand` parts at a time, so that it does not hold what it has not begun.

    Raises:
        InputError: nothing more can be written; a constraint cannot be computed; workers die.
    """
    with folder.locked(f"{shard.number}-of-{shard.count}"):
        folder.remove_leftovers(shard.parts(plan))
        progress, missing = _look(plan, folder, shard, tell)
        work = _Work(plan, folder, tell, progress, deque(missing))
        while work.missing:
            executor = make_executor()
            try:
                work.use(executor, num_in_hand)
            finally:
                executor.shutdown(cancel_futures=True)
    return work.progress


def _look(
    plan: Plan, folder: SweepFolder, shard: Shard, tell: Tell
) -> tuple[Progress, Sequence[int]]:
    """What is there already, and the parts that are missing or damaged."""
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
        tell(progress)
    return progress, missing


@dataclass
class _Work:
    """The parts that are still to be computed."""

    plan: Plan
    folder: SweepFolder
    tell: Tell
    progress: Progress
    missing: deque[int]
    deaths: Counter[int] = field(default_factory=Counter)

    def use(self, executor: Executor, num_in_hand: int) -> None:
        """Have an executor compute parts until none is missing, or until it takes no more."""
        in_hand: dict[Future[Part], int] = {}
        broken = False
        while in_hand or (self.missing and not broken):
            broken = broken or not self.hand_out(executor, in_hand, num_in_hand)
            self.put_back(self.collect(in_hand))

    def hand_out(
        self, executor: Executor, in_hand: dict[Future[Part], int], num_in_hand: int
    ) -> bool:
        """Give the executor parts to compute; whether it took them."""
        while self.missing and self.may_begin(self.missing[0], in_hand.values(), num_in_hand):
            try:
                in_hand[executor.submit(run_part, self.plan, self.missing[0])] = self.missing[0]
            except BrokenExecutor:
                return False
            self.missing.popleft()
        return True

    def may_begin(self, number: int, in_hand: Collection[int], num_in_hand: int) -> bool:
        """Whether a part may be handed out now; what was lost repeatedly is computed alone."""
        alone = any(self.deaths[one] > _DEATHS_TOGETHER for one in (number, *in_hand))
        return len(in_hand) < (1 if alone else num_in_hand)

    def collect(self, in_hand: dict[Future[Part], int]) -> list[int]:
        """Write what is finished; the parts that were lost with a worker."""
        lost = []
        for future in wait(in_hand, return_when=FIRST_COMPLETED).done:
            number = in_hand.pop(future)
            if isinstance(future.exception(), BrokenExecutor):
                lost.append(number)
                continue
            part = future.result()
            self.folder.write(part)
            self.progress = self.progress.and_part(part.counts)
            self.tell(self.progress)
        return sorted(lost)

    def put_back(self, lost: Sequence[int]) -> None:
        """Have parts computed again, unless they seem to be why workers die.

        Raises:
            InputError: workers died too often with one of them in hand.
        """
        self.deaths.update(lost)
        self.missing.extendleft(reversed(lost))
        self.progress = replace(self.progress, num_lost=self.progress.num_lost + len(lost))
        for number in lost:
            if self.deaths[number] > _MAX_DEATHS:
                raise InputError([self._cause_of_deaths(number)])

    def _cause_of_deaths(self, number: int) -> Problem:
        indices = self.plan.indices(number)
        ends = (in_words(self.plan.cells(index)) for index in (indices[0], indices[-1]))
        points = " to ".join(dict.fromkeys(ends))
        message = (
            f"workers died {self.deaths[number]} times with part {number} in hand, which is points "
            f"{indices[0]} to {indices[-1]}: {points}"
        )
        reason = "the system ends processes when memory runs out, and libraries can crash"
        fix = (
            "give the same command again with --workers 1 and without --executor, which needs the "
            "least memory and shows what happens; what was finished is not done again"
        )
        return Problem("E850", message, Location(str(self.folder.path)), reason, fix)
