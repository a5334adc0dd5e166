"""A pipeline schedule: the actions of each rank in order, their text, and what they save."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass, field, replace
from simtrain.errors import InputError, Location, Problem
from simtrain.schedules.actions import (
    KINDS,
    Action,
    Cell,
    MergedActions,
    actions_of,
    merging_problem,
    parse_cell,
)
from simtrain.schedules.stage_placement import StagePlacement, common_placements

Ints = NDArray[np.signedinteger[Any]]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The ordered actions of each rank.

    The family of this `name` says how ranks exchange messages (`simtrain.schedules.FAMILIES`).

    Args:
        placement: the rank of each virtual stage.
        rank_starts: index of each rank's first action, shape [rank + 1]; rank r has the actions
            `rank_starts[r]:rank_starts[r + 1]`.
        virtual_stage, microbatch: of each action, shape [action].
        kind: index into `KINDS` of each action, shape [action].
        merges: whether each action, a forward, runs merged with the next one of its rank, a
            backward of another microbatch, shape [action]; None for no action.
        group_size: microbatches of a group, if a scenario chose them (`OrderOptions`).
    """

    name: str
    placement: StagePlacement
    num_microbatches: int
    rank_starts: Ints = field(repr=False)
    virtual_stage: Ints = field(repr=False)
    kind: Ints = field(repr=False)
    microbatch: Ints = field(repr=False)
    merges: Flags | None = field(default=None, repr=False)
    group_size: int | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        placement: StagePlacement,
        num_microbatches: int,
        ranks: Sequence[Sequence[Cell]],
    ) -> Self:
        """Build a schedule from a list of actions and merged actions per rank."""
        columns, merges, starts = [], [], [0]
        for rank in ranks:
            for cell in rank:
                for action in actions_of(cell):
                    kind = KINDS.index(action.kind)
                    columns.append((action.virtual_stage, kind, action.microbatch))
                merges += [True, False] if isinstance(cell, MergedActions) else [False]
            starts.append(len(columns))
        stages, kinds, microbatches = np.array(columns, np.int32).reshape(-1, 3).T
        flags = np.array(merges, np.bool_) if any(merges) else None
        sizes = placement, num_microbatches, np.array(starts, np.int32)
        return cls(name, *sizes, stages, kinds, microbatches, flags)

    def __repr__(self) -> str:
        sizes = f"{self.num_stages} stages, {self.num_chunks} chunks"
        return f"<Schedule {self.name}: {sizes}, {self.num_microbatches} microbatches>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and (self.name, self.cells) == (other.name, other.cells)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def ranks(self) -> tuple[tuple[Action, ...], ...]:
        starts = self.rank_starts.tolist()
        actions = [*map(self.action, range(len(self.kind)))]
        return tuple(tuple(actions[start:end]) for start, end in itertools.pairwise(starts))

    @cached_property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """What each rank runs at a time, in order: an action, or two that are merged."""
        ranks: list[tuple[Cell, ...]] = []
        for rank, start in zip(self.ranks, self.rank_starts.tolist(), strict=False):
            cells: list[Cell] = []
            for place, action in enumerate(rank, start):
                if self.follows_merged[place]:
                    cells[-1] = MergedActions(cast(Action, cells[-1]), action)
                else:
                    cells.append(action)
            ranks.append(tuple(cells))
        return tuple(ranks)

    @cached_property
    def follows_merged(self) -> Flags:
        """Whether each action runs merged with the one before it, shape [action]."""
        follows = np.zeros(len(self.kind), np.bool_)
        if self.merges is not None:
            follows[1:] = self.merges[:-1]
        return follows

    @cached_property
    def cell(self) -> Ints:
        """The place of each action's cell on its rank, shape [action]."""
        number = np.cumsum(~self.follows_merged)
        cell: Ints = number - number[self.rank_starts[self.rank]]
        return cell

    def action(self, place: int) -> Action:
        kind = KINDS[self.kind[place]]
        return Action(int(self.virtual_stage[place]), kind, int(self.microbatch[place]))

    @cached_property
    def rank(self) -> Ints:
        return np.repeat(np.arange(self.num_stages, dtype=np.int32), np.diff(self.rank_starts))

    def cell_at(self, place: int) -> Cell:
        """The action at an index, or the merged actions to which it belongs."""
        first = place - int(self.follows_merged[place])
        if self.merges is None or not self.merges[first]:
            return self.action(place)
        return MergedActions(self.action(first), self.action(first + 1))

    @property
    def num_stages(self) -> int:
        return self.placement.num_ranks

    @property
    def num_chunks(self) -> int:
        return self.placement.num_chunks

    @property
    def num_virtual_stages(self) -> int:
        return self.placement.num_virtual_stages

    def to_csv(self) -> str:
        """Write one line per rank, without a header: PyTorch's compute-only schedule format."""
        return "".join(",".join(map(str, cells)) + "\n" for cells in self.cells)

    @cached_property
    def num_actions(self) -> Ints:
        """[virtual stages, kinds], the number of actions."""
        shape = self.num_virtual_stages, len(KINDS)
        columns = self.virtual_stage, self.kind
        counts: Ints = np.bincount(
            np.ravel_multi_index(columns, shape), minlength=math.prod(shape)
        ).reshape(shape)
        return counts

    @cached_property
    def last_backwards(self) -> Ints:
        """[virtual stages], the last action of each one that computes weight gradients: B or W."""
        last = np.zeros(self.num_virtual_stages, np.int32)
        places = np.flatnonzero((self.kind == KINDS.index("B")) | (self.kind == KINDS.index("W")))
        np.maximum.at(last, self.virtual_stage[places], places)
        return last

    @cached_property
    def first_forwards(self) -> Ints:
        """[virtual stages], the first forward pass of each one."""
        first = np.full(self.num_virtual_stages, len(self.kind), np.int32)
        places = np.flatnonzero(self.kind == KINDS.index("F"))
        np.minimum.at(first, self.virtual_stage[places], places)
        return first

    @property
    def merges_ends(self) -> bool:
        """Whether the first forward or the last backward pass of a chunk runs merged."""
        if self.merges is None:
            return False
        is_end = self.merges[self.first_forwards] | self.follows_merged[self.last_backwards]
        return bool(is_end.any())

    @property
    def splits_backwards(self) -> bool:
        return bool((self.kind > KINDS.index("B")).any())

    @classmethod
    def from_csv(
        cls,
        text: str,
        name: str,
        file: str = "schedule.csv",
        placements: Callable[[int, int], Iterable[StagePlacement]] = common_placements,
    ) -> Self:
        """Read and validate the text of `to_csv`; empty cells (PyTorch's idle slots) are skipped.

        Args:
            text: a line per rank.
            name: of the schedule.
            file: named by errors.
            placements: returns the placements that the schedule can have for numbers of ranks and
                chunks per rank. The first that fits its actions is chosen; otherwise the first one
                says which actions are misplaced.

        Raises:
            InputError: a cell is not an action (E401) or merges actions that cannot be merged
                (E409), or the schedule does not pass `validate` (with file, line and column).
        """
        lines = text.splitlines()
        ranks = tuple(tuple(_parse_line(file, row, line)) for row, line in enumerate(lines, 1))
        actions = [action for rank in ranks for cell in rank for action in actions_of(cell)]
        if not actions:
            raise InputError([_no_action(file)])
        # Fewer chunks than a mistyped number may say: no virtual stage is without actions.
        most_chunks = max(1, len(actions) // len(ranks))
        num_chunks = max(action.virtual_stage for action in actions) // len(ranks) + 1
        candidates = placements(len(ranks), min(num_chunks, most_chunks))
        num_microbatches = max(action.microbatch for action in actions) + 1
        placement = _fitting(candidates, ranks, num_microbatches)
        schedule = cls.of(name, placement, num_microbatches, ranks)
        problems = [*schedule._located_problems(file, lines)]
        if problems:
            raise InputError(problems)
        return schedule

    def validate(self) -> None:
        """Check that every rank runs all of its actions once, in an order that can run.

        Each (virtual stage, microbatch) needs one F and then one B (or one I and then one W) on
        its own rank. Whether the orders of different ranks fit together shows when they run: the
        engine reports a deadlock.

        Raises:
            InputError: the first problem of every rank (E403 to E407, E409).
        """
        if len(self.rank_starts) - 1 != self.num_stages:
            message = f"{self.num_stages} stages, but actions for {len(self.rank_starts) - 1} ranks"
            raise InputError([Problem(code="E403", message=message)])
        problems = [problem for _, _, problem in self._first_problems()]
        if problems:
            raise InputError(problems)

    def _located_problems(self, file: str, lines: Sequence[str]) -> Iterator[Problem]:
        for rank, place, problem in self._first_problems():
            line = lines[rank]
            column = None
            if place is not None:
                cell = int(self.cell[self.rank_starts[rank] + place])
                column = [*cells_of(line)][cell][0]
            location = Location(file, rank + 1, column, "" if column is None else line)
            yield replace(problem, location=location)

    def _first_problems(self) -> Iterator[tuple[int, int | None, Problem]]:
        for rank in range(self.num_stages):
            for place, problem in islice(self._problems(rank), 1):
                yield rank, place, problem

    def _problems(self, rank: int) -> Iterator[tuple[int | None, Problem]]:
        done: set[Action] = set()
        first, actions = int(self.rank_starts[rank]), self.ranks[rank]
        for place, action in enumerate(actions):
            if self.follows_merged[first + place]:
                problem = merging_problem(actions[place - 1], action) if place else None
                if problem is not None:
                    yield place, problem
            if not self._belongs(action, rank):
                yield place, self._misplaced(action, rank)
            if action in done:
                message = f"rank {rank} runs {action} twice"
                yield place, Problem(code="E405", message=message, fix="remove one of them")
            for needed in self._needed_on_same_rank(action, done):
                message = f"rank {rank} runs {action} before {needed}"
                reason, fix = f"{action} uses the result of {needed}", f"move {needed} before it"
                yield place, Problem("E406", message, reason=reason, fix=fix)
            done.add(action)
        for unfinished in self._unfinished(rank, done):
            yield None, unfinished

    def _belongs(self, action: Action, rank: int) -> bool:
        return (
            0 <= action.virtual_stage < self.num_virtual_stages
            and action.microbatch
            in self.placement.microbatches(action.virtual_stage, self.num_microbatches)
            and self.placement.ranks[action.virtual_stage] == rank
        )

    def _misplaced(self, action: Action, rank: int) -> Problem:
        stages, fix = self.placement.virtual_stages[rank], "correct its numbers"
        if action.virtual_stage in range(self.num_virtual_stages):
            fix = f"move it to rank {self.placement.ranks[action.virtual_stage]}, or {fix}"
        return Problem(
            code="E404",
            message=f"{action} does not belong on rank {rank}",
            reason=f"rank {rank} of {self.num_stages} holds virtual stages {list(stages)} "
            f"and microbatches 0 to {self.num_microbatches - 1}",
            fix=fix,
        )

    def _needed_on_same_rank(self, action: Action, done: set[Action]) -> Iterator[Action]:
        """The actions on this rank whose results `action` uses and that have not run yet."""
        stage, per_copy = action.virtual_stage, self.placement.stages_per_copy
        if action.kind == "W":
            needed = [action._replace(kind="I")]
        elif action.kind == "F":
            needed = [action._replace(virtual_stage=stage - 1)] if stage % per_copy else []
        else:
            needed = [action._replace(kind="F")]
            if (stage + 1) % per_copy:
                backward = action._replace(virtual_stage=stage + 1, kind="B")
                split = backward._replace(kind="I")
                needed.append(split if split in done else backward)
        rank_of = self.placement.ranks
        for other in needed:
            if rank_of[other.virtual_stage] == rank_of[stage] and other not in done:
                yield other

    def _unfinished(self, rank: int, done: set[Action]) -> Iterator[Problem]:
        for stage in self.placement.virtual_stages[rank]:
            for microbatch in self.placement.microbatches(stage, self.num_microbatches):
                forward, full, input_gradient, weight_gradient = (
                    Action(stage, kind, microbatch) in done for kind in ("F", "B", "I", "W")
                )
                split = input_gradient and weight_gradient
                if not forward or full == split or input_gradient != weight_gradient:
                    yield Problem(
                        code="E407",
                        message=f"rank {rank} does not run virtual stage {stage}, "
                        f"microbatch {microbatch} exactly once",
                        reason="each needs one F, and either one B or one I and one W",
                        fix=f"write {stage}F{microbatch} and {stage}B{microbatch} once each on "
                        f"the line of rank {rank}",
                    )


def _fitting(
    placements: Iterable[StagePlacement], ranks: Sequence[Sequence[Cell]], num_microbatches: int
) -> StagePlacement:
    """Return the first placement whose ranks are those of all actions; else the first one.

    Of these, the first one with copies whose microbatches are those of all actions comes before.
    """
    actions = [[action for cell in rank for action in actions_of(cell)] for rank in ranks]
    stages = [{action.virtual_stage for action in rank} for rank in actions]
    first, *others = placements
    fitting = [
        placement
        for placement in (first, *others)
        if all(map(set.issubset, stages, placement.virtual_stages))
    ]
    for placement in fitting:
        of_stages = [
            placement.microbatches(stage, num_microbatches)
            for stage in range(placement.num_virtual_stages)
        ]
        if placement.copies > 1 and all(
            action.microbatch in of_stages[action.virtual_stage]
            for action in chain.from_iterable(actions)
        ):
            return placement
    return next(iter(fitting), first)


def cells_of(line: str) -> Iterator[tuple[int, str]]:
    """Yield the cells of a line that are not empty, with their columns, counted from 1."""
    column = 1
    for cell in line.split(","):
        text = cell.strip()
        if text:
            yield column + cell.index(text), text
        column += len(cell) + 1


def _parse_line(file: str, row: int, line: str) -> Iterator[Cell]:
    for column, text in cells_of(line):
        yield _parse_cell(text, Location(file, row, column, line))


def _parse_cell(text: str, location: Location) -> Cell:
    try:
        return parse_cell(text)
    except InputError as error:
        located = [replace(problem, location=location) for problem in error.problems]
        raise InputError(located) from None


def _no_action(file: str) -> Problem:
    return Problem(
        code="E402",
        message="the schedule contains no actions",
        location=Location(file),
        reason="a schedule has one line per rank, with actions separated by commas",
        fix='write for example "0F0,0B0" for one rank and one microbatch',
    )


# Microbatch-level recompute: in each window of forward passes, the first few save everything.
#
# Source: paper, Appendix C; Megatron-LM's num_microbatches_with_partial_activation_checkpoints
# (core/pipeline_parallel/schedules.py). Megatron counts a rank's forward passes over all its chunks
# and cuts them into windows of `max_outstanding_backprops`. Interleaved chunks run backward in a
# different order than forward, so a rank can briefly hold more fully saved passes than one window
# has.

_OUTSTANDING = np.array([{"F": 1, "B": -1, "I": 0, "W": -1}[kind] for kind in KINDS])


def most_outstanding(schedule: Schedule) -> Ints:
    """Largest number of forward passes waiting for their backward pass, shape [rank]."""
    outstanding = _counted(schedule, _OUTSTANDING[schedule.kind])
    most: Ints = np.maximum.reduceat(outstanding, schedule.rank_starts[:-1])
    return most


def save_all_actions(schedule: Schedule, num_saving_all: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each action belongs to a microbatch that saves all its activations, shape [action].

    Args:
        schedule: the schedule.
        num_saving_all: for each rank, the number of forward passes per window that save everything.
    """
    if not any(num_saving_all):
        return np.zeros(len(schedule.kind), np.bool_)
    saving = np.zeros((schedule.num_virtual_stages, schedule.num_microbatches), np.bool_)
    is_forward = schedule.kind == KINDS.index("F")
    number = _counted(schedule, is_forward) - 1
    window = most_outstanding(schedule)[schedule.rank]
    is_saving = is_forward & (number % window < np.array(num_saving_all)[schedule.rank])
    saving[schedule.virtual_stage[is_saving], schedule.microbatch[is_saving]] = True
    saves_all: NDArray[np.bool_] = saving[schedule.virtual_stage, schedule.microbatch]
    return saves_all


def _counted(schedule: Schedule, changes: NDArray[np.int64 | np.bool_]) -> Ints:
    """Running sum of `changes` within each rank, including the action itself."""
    sums = np.concatenate([[0], np.cumsum(changes)])
    counted: Ints = sums[1:] - sums[schedule.rank_starts[schedule.rank]]
    return counted
