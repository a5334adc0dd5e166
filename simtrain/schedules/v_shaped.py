"""V-Half and V-Min (Qi et al. 2024): V-shaped schedules with a half and a third of 1F1B's memory.

A building block has the times of one microbatch's passes. It is repeated every 6 slots, in which
each rank runs two forwards, two input gradients and two weight gradients. `repeated_block` moves
passes of the warm-up and of the cool-down to earlier idle slots.
"""

from __future__ import annotations

import heapq
import itertools
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simtrain.schedules.actions import Action, Kind
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth

_PASSES: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0), ("W", 1), ("W", 0))
"""Kind and chunk of the rows of a repeated block."""


class _VShaped(ScheduleFamily):
    """Schedules that repeat a building block on a V-shaped placement."""

    fewest_chunks = most_chunks = 2

    @abstractmethod
    def block(self, p: int) -> list[Block]:
        """Return for each rank the slots of the first microbatch's F0, F1, I1 and I0."""

    def placement(self, p: int, m: int) -> StagePlacement:
        return back_and_forth(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        placement, ranks = back_and_forth(p, m), []
        orders = repeated_block(self.block(p), n)
        for stages, order in zip(placement.virtual_stages, orders, strict=True):
            passes = ((*_PASSES[row], microbatch) for row, microbatch in order)
            ranks.append([Action(stages[chunk], kind, number) for kind, chunk, number in passes])
        return Schedule.of(self.name, placement, n, ranks)


class VHalf(_VShaped):
    """V-Half: half of 1F1B's activations on every stage, with a bubble like that of 1F1B."""

    name = "v_half"

    def block(self, p: int) -> list[Block]:
        # With an even p, the passes of two ranks would share a slot.
        turn = 3 * p - 1 + 3 * (p % 2 == 0)
        ranks = range(p)
        return [(2 * r, 3 * p - 2 - r, turn + 2 * r, turn + 3 * p - 1 - r) for r in ranks]


class VMin(_VShaped):
    """V-Min: a third of 1F1B's activations on every stage, with a longer bubble."""

    name = "v_min"

    def block(self, p: int) -> list[Block]:
        turn = 2 * p + 2 * (p % 3 == 0)
        return [(r, 2 * p - 1 - r, turn + r, turn + 2 * p - 1 - r) for r in range(p)]


# ------------------------------------------------------------------------------
# Repeat a building block of a V-shaped schedule, and shorten both of its ends.
#
# Source: Qi et al. 2024 ("Pipeline Parallelism with Controllable Memory"), Section 4 and
# Appendix; the rules by which passes move are those of `zbv_greedy.py` in sail-sg's zero-bubble
# repository:
#
# 1. Repeat the block every 6 slots, and put weight gradients into idle slots.
# 2. Move the passes before the first microbatch has returned, and those after the last one has
#    started, to earlier idle slots, in the order of their times, as far as their inputs and the
#    largest number of waiting forward passes allow.
# 3. Squeeze: start each pass when the one before it and its inputs are done.
# 4. Do 2 and 3 again for the end, with weight gradients taken out first and put back last.
#
# A pass is a row (F0, F1, I1, I0, then W) and a microbatch; each takes one slot.


Block = tuple[int, int, int, int]
"""Slots of F0, F1, I1 and I0 of the first microbatch on a rank."""
Times = list[list[int]]
"""[rows, microbatches], the slot of each pass of a rank; a last row has its weight gradients."""

INTERVAL = 6
"""Slots of a repetition."""
_F0, _F1, _I1, _I0, _W = range(5)
_INPUTS = (_I1, _I0)


def repeated_block(block: list[Block], n: int) -> list[list[tuple[int, int]]]:
    """Return the order of each rank's passes for n microbatches.

    Args:
        block: for each rank, the slots of the first microbatch.
        n: number of microbatches.

    Returns:
        for each rank, rows and microbatches in order; rows 4 and 5 are the weight gradients of I1
        and I0.
    """
    starts = [[slot + INTERVAL * np.arange(n) for slot in rank] for rank in block]
    ranks = [_with_weights([slots.tolist() for slots in rank]) for rank in starts]
    ranks = [rank[:_W] for rank in _squeezed(_moved_earlier(ranks))]
    ranks = _squeezed([_with_weights(rank) for rank in _moved_earlier(ranks)])
    return [_ordered(rank[:_W]) for rank in ranks]


def _idle_slots(rank: Times) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the input gradients of each slot, and whether it is idle, up to the last pass."""
    num_slots = max(slots[-1] for slots in rank) + 1
    inputs, is_idle = np.zeros(num_slots, np.int64), np.ones(num_slots, np.bool_)
    for row, slots in enumerate(rank):
        is_idle[slots] = False
        if row in _INPUTS:
            inputs[slots] = 1
    return inputs, is_idle


def _with_weights(rank: Times) -> Times:
    """Add weight gradients in the first idle slots after their input gradients."""
    inputs, is_idle = _idle_slots(rank)
    waiting, slots = 0, list[int]()
    for slot, (is_input, idle) in enumerate(zip(inputs.tolist(), is_idle.tolist(), strict=True)):
        waiting += is_input
        if idle and waiting:
            slots.append(slot)
            waiting -= 1
    end = len(inputs)
    return [*rank, [*slots, *range(end, end + waiting)]]


def _ordered(rank: Times) -> list[tuple[int, int]]:
    """Return rows and microbatches in order, with a weight gradient in each idle slot.

    Of the waiting ones, those of I1 run first.
    """
    passes = {
        slot: (row, number) for row, slots in enumerate(rank) for number, slot in enumerate(slots)
    }
    order, waiting = list[tuple[int, int]](), list[tuple[int, int]]()
    for slot in range(max(passes) + 1):
        if slot in passes:
            row, number = passes[slot]
            order.append((row, number))
            if row in _INPUTS:
                heapq.heappush(waiting, (row + 2, number))
        elif waiting:
            order.append(heapq.heappop(waiting))
    return order + sorted(waiting)


def _in_time(ranks: list[Times]) -> list[tuple[int, int, int, int]]:
    """Return slot, rank, row and microbatch of all passes, sorted."""
    return sorted(
        (slot, rank, row, number)
        for rank, rows in enumerate(ranks)
        for row, slots in enumerate(rows)
        for number, slot in enumerate(slots)
    )


def _needed(ranks: list[Times], rank: int, row: int, number: int) -> Iterator[int]:
    """Yield the slots of the passes that a pass follows, apart from its rank's last one."""
    neighbour = rank + (-1 if row in (_F0, _I1) else 1)
    if row < _W and 0 <= neighbour < len(ranks):
        yield ranks[neighbour][row][number]
    if _F0 < row < _W:
        yield ranks[rank][row - 1][number]
    if number:
        yield ranks[rank][row][number - 1]


def _squeezed(ranks: list[Times]) -> list[Times]:
    """Start each pass as early as its rank's order and its inputs allow."""
    squeezed = [[[*slots] for slots in rank] for rank in ranks]
    ends = [-1] * len(ranks)
    for _, rank, row, number in _in_time(ranks):
        slot = max(ends[rank], *_needed(squeezed, rank, row, number), -1) + 1
        squeezed[rank][row][number] = ends[rank] = slot
    return squeezed


def _moved_earlier(ranks: list[Times]) -> list[Times]:
    """Move passes of the ends to earlier idle slots without more waiting forward passes.

    Without a row of weight gradients, only the passes after the last microbatch's start move, and
    weight gradients are those of `_with_weights`.
    """
    has_weights = len(ranks[0]) > _W
    moved = [[[*slots] for slots in rank] for rank in ranks]
    memory = [_ExplicitWeights(rank) if has_weights else _ImplicitWeights(rank) for rank in moved]
    limit = max(rank.peak() for rank in memory)
    taken: list[set[int]] = [set() for _ in ranks]
    last = len(ranks[0][_F0]) - 1
    moves, has_returned = has_weights, False
    for slot, rank, row, number in _in_time(ranks):
        if rank == 0 and row == _I0 and not has_returned:
            has_returned, moves = True, False
        place = slot
        if moves:
            earliest = max(_needed(moved, rank, row, number), default=-1) + 1
            if row == _W:
                earliest = max(earliest, sorted(moved[rank][_I1] + moved[rank][_I0])[number] + 1)
            for idle in range(earliest, slot):
                if idle not in taken[rank] and memory[rank].peak_if(row, number, idle) <= limit:
                    place = idle
                    memory[rank].move(row, number, place)
                    break
        elif has_returned and row == _F0 and number == last:
            moves = True
        taken[rank].add(place)
    return moved


class _ExplicitWeights:
    """Forward passes of a rank that wait for their weight gradients, which are passes of it."""

    def __init__(self, rank: Times) -> None:
        self.rank = rank
        changes = np.zeros(max(slots[-1] for slots in rank) + 1, np.int64)
        for row, change in ((_F0, 1), (_F1, 1), (_W, -1)):
            changes[rank[row]] = change
        self.waiting = np.cumsum(changes)

    def peak(self) -> int:
        return int(self.waiting.max())

    def peak_if(self, row: int, number: int, slot: int) -> int:
        is_forward = row in (_F0, _F1)
        return int(self.waiting[slot : self.rank[row][number]].max()) + is_forward

    def move(self, row: int, number: int, slot: int) -> None:
        change = {_F0: 1, _F1: 1, _W: -1}.get(row, 0)
        self.waiting[slot : self.rank[row][number]] += change
        self.rank[row][number] = slot


class _ImplicitWeights:
    """Forward passes of a rank that wait for weight gradients, which run in its idle slots."""

    def __init__(self, rank: Times) -> None:
        self.rank = rank
        self.inputs, self.is_idle = _idle_slots(rank)
        self.forwards = np.zeros_like(self.inputs)
        self.forwards[[*rank[_F0], *rank[_F1]]] = 1

    def peak(self) -> int:
        total = np.cumsum(self.inputs - self.is_idle)
        # A queue with one server per idle slot.
        waiting_weights = total - np.minimum(np.minimum.accumulate(total), 0)
        done = np.cumsum(self.inputs) - waiting_weights
        return int((np.cumsum(self.forwards) - done).max())

    def peak_if(self, row: int, number: int, slot: int) -> int:
        """Return the most of them if a pass runs in an earlier slot."""
        before = self.rank[row][number]
        self._exchange(row, before, slot)
        peak = self.peak()
        self._exchange(row, slot, before)
        return peak

    def move(self, row: int, number: int, slot: int) -> None:
        self._exchange(row, self.rank[row][number], slot)
        self.rank[row][number] = slot

    def _exchange(self, row: int, before: int, after: int) -> None:
        passes = self.inputs if row in _INPUTS else self.forwards
        for slots in (passes, self.is_idle):
            slots[before], slots[after] = slots[after], slots[before]


# ------------------------------------------------------------------------------
# ZB-V (Qi et al. 2024): two chunks per stage, placed as a V, with 1F1B's memory on every stage.


_Pass = tuple[Kind, int]
"""The kind and the chunk of a pass."""


class Zbv(ScheduleFamily):
    """PyTorch's `ScheduleZBVZeroBubble`. Without bubble if F, I and W take equally long."""

    name = "zbv"
    fewest_chunks = most_chunks = 2
    torch_names = ("zbvzerobubble",)

    def placement(self, p: int, m: int) -> StagePlacement:
        return back_and_forth(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes.

        Fewer than 2p - 1 microbatches run in the order of 2p - 1 without the others.
        """
        placement, ranks = self.placement(p, m), []
        for rank, stages in enumerate(placement.virtual_stages):
            numbers = {(kind, chunk): itertools.count() for kind in "FIW" for chunk in range(2)}
            passes = _passes(rank, p, max(2 * p - 1, n))
            actions = [
                Action(stages[chunk], kind, next(numbers[kind, chunk])) for kind, chunk in passes
            ]
            ranks.append([action for action in actions if action.microbatch < n])
        return Schedule.of(self.name, placement, n, ranks)


def _passes(rank: int, p: int, n: int) -> Iterator[_Pass]:
    """Yield the kind and the chunk of each pass of a rank; each one runs the next microbatch."""
    later, num_started = p - rank, 2 * p - rank - 1
    forwards: list[_Pass] = [("F", 0), ("F", 1)]
    inputs: list[_Pass] = [("I", 0), ("I", 1)]
    weights: list[_Pass] = [("W", 0), ("W", 1)]
    backwards = [[inputs[chunk], weights[chunk]] for chunk in range(2)]
    yield from forwards[:1] * (2 * later - 1)
    yield from forwards[::-1] * rank
    yield from [forwards[1], *backwards[1]] * later
    steady = [*backwards[0], forwards[1], *backwards[1]]
    yield from [forwards[0], *steady] * (n - num_started)
    # The second chunk still has the forwards that the first one is ahead.
    yield from steady * (later - 1)
    yield from inputs * rank
    yield from backwards[0] * later
    yield from weights[1:] * rank
    yield from weights[:1] * rank
