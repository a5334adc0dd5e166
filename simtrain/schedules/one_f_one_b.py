"""Schedules that warm up and then alternate: 1F1B, interleaved and zero-bubble."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from simtrain.base.values import replace
from simtrain.errors import Problem
from simtrain.schedules.actions import KINDS, Action, Kind
from simtrain.schedules.exchanges import ExchangeSlots, Messages, slots_of_blocks
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth

# Orders of warm-up forwards, then alternating forwards and backwards, then the last backwards.
#
# Megatron-LM's schedules have this form (core/pipeline_parallel/schedules.py). They differ in the
# number of warm-up forwards and in the order of the chunks.


class WarmupFamily(ScheduleFamily):
    """Schedules with a warm-up, a steady phase and a cool-down on each stage.

    If it merges passes, the two passes of each pair of the steady phase run side by side. A pair's
    backward pass cannot be that of its forward pass, so the warm-up has one more forward.
    """

    @abstractmethod
    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return the number of forwards before a rank's first forward-backward pair."""

    def group_of(self, p: int, n: int) -> int:
        return n

    def build(self, p: int, m: int, n: int) -> Schedule:
        turns, num_warmup = np.arange(m * n), self._warmups(p, m, n)[:, None]
        forward = np.where(turns < num_warmup, turns, 2 * turns - num_warmup)
        backward = np.where(turns < m * n - num_warmup, num_warmup + 2 * turns + 1, m * n + turns)
        schedule = self.ordered(p, m, n, {"F": forward, "B": backward})
        if not self.options.merges:
            return schedule
        merges = np.zeros((p, 2 * m * n), np.bool_)
        merges[np.arange(p)[:, None], forward] = turns >= num_warmup
        return replace(schedule, merges=merges.ravel())

    def ordered(self, p: int, m: int, n: int, places: dict[Kind, Ints]) -> Schedule:
        """Return the order in which each kind of action has these places, [rank, m * n] each.

        Forward passes run chunks and microbatches in Megatron's table, others run the chunks in
        the opposite order.
        """
        ranks, placement = np.arange(p)[:, None], self.placement(p, m)
        chunk, microbatch = _turns(m, n, self.group_of(p, n))
        virtual_stages, num_actions = np.array(placement.virtual_stages), len(places) * m * n
        actions = np.empty((3, p, num_actions), np.int32)
        for kind, place in places.items():
            is_forward = kind == "F"
            chunks = chunk if is_forward else m - 1 - chunk
            actions[0, ranks, place] = virtual_stages[ranks, chunks]
            actions[1, ranks, place] = KINDS.index(kind)
            actions[2, ranks, place] = microbatch
        starts = np.arange(p + 1, dtype=np.int32) * num_actions
        virtual_stage, kind_of, microbatch_of = actions.reshape(3, -1)
        return Schedule(self.name, placement, n, starts, virtual_stage, kind_of, microbatch_of)

    def most_outstanding(self, p: int, m: int, n: int) -> int:
        return min(self.num_warmup_forwards(0, p, m, n) + 1, m * n)

    def blocking_slots(self, messages: Messages) -> ExchangeSlots:
        """Return slots in which receiving, acting and sending are separate calls in the warm-up
        and cool-down. Elsewhere one call after each action sends its output and receives the next
        action's input (Megatron-LM `forward_backward_pipelining_without_interleaving`).
        """
        schedule = messages.schedule
        place = np.arange(len(schedule.kind)) - schedule.rank_starts[schedule.rank]
        warmup, cooldown = self.phases(schedule)
        return slots_of_blocks(messages, place, (place >= warmup) & (place + 1 < cooldown))

    def phases(self, schedule: Schedule) -> tuple[Ints, Ints]:
        """Return, for each action, where its rank's warm-up ends and its cool-down begins."""
        sizes = schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
        warmup: Ints = self._warmups(*sizes)[schedule.rank]
        cooldown: Ints = np.diff(schedule.rank_starts)[schedule.rank] - warmup
        return warmup, cooldown

    def _warmups(self, p: int, m: int, n: int) -> Ints:
        return np.array([self.num_warmup_forwards(rank, p, m, n) for rank in range(p)])


def _turns(m: int, n: int, group: int) -> tuple[Ints, Ints]:
    """Megatron's schedule table: for each group of microbatches, each chunk in turn runs the group.

    The last group has the remaining microbatches. Returns the chunk (0 is the first to run) and
    the microbatch of each forward, both of shape [m * n].
    """
    turns, num_whole = np.arange(m * n), n // group
    starts = np.minimum(turns // (m * group), num_whole) * group
    size = np.where(starts < num_whole * group, group, max(n % group, 1))
    turns = turns - m * starts
    return turns // size, starts + turns % size


# ------------------------------------------------------------------------------
# Orders of a warm-up family whose backward passes are split into input and weight gradients.


class SplitWarmupFamily(WarmupFamily):
    """Schedules with a warm-up whose weight gradients follow input gradients at a distance.

    A rank runs weight gradients (W) in the order of its input gradients (I): the first one after
    `weight_delay` + 1 input gradients, then one after each I, and the remaining ones at the end.
    """

    @abstractmethod
    def weight_delay(self, rank: int, p: int) -> int:
        """Return the input gradients whose weight gradients wait on a rank in the steady phase."""

    def build(self, p: int, m: int, n: int) -> Schedule:
        turns, num_forwards = np.arange(m * n), m * n
        warmup = self._warmups(p, m, n)[:, None]
        delay = np.array([self.weight_delay(rank, p) for rank in range(p)])[:, None]
        # The place of a pass is the number of passes of each kind before it.
        after_warmup = np.maximum(turns - warmup, 0)
        forward = turns + after_warmup + np.maximum(after_warmup - delay, 0)
        due = np.minimum(turns + warmup + 1, num_forwards)
        backward = turns + due + np.maximum(turns - delay, 0)
        is_last = turns + delay >= num_forwards
        matching = np.minimum(turns + delay, num_forwards - 1)
        weights = np.where(
            is_last, 2 * num_forwards + turns, np.take_along_axis(backward, matching, axis=1) + 1
        )
        return self.ordered(p, m, n, {"F": forward, "I": backward, "W": weights})

    def blocking_slots(self, messages: Messages) -> ExchangeSlots:
        return ScheduleFamily.blocking_slots(self, messages)

    def most_outstanding(self, p: int, m: int, n: int) -> int:
        return super(WarmupFamily, self).most_outstanding(p, m, n)


class OneFOneB(WarmupFamily):
    """Megatron-LM's `forward_backward_pipelining_without_interleaving`.

    With one stage this is `forward_backward_no_pipelining`: F0 B0 F1 B1 ... Only one stage can
    merge passes: F0 F1&B0 F2&B1 ... (`combined_1f1b_schedule_for_no_pipelining`).
    """

    name = "1f1b"
    is_of_megatron = True
    torch_names = ("1f1b",)
    can_merge = True

    def problems(self, p: int, m: int, n: int) -> Iterator[Problem]:
        yield from super().problems(p, m, n)
        if self.options.merges and p > 1:
            yield Problem(
                "E430",
                f"schedule {self.name} with merged passes on {p} stages",
                reason="Megatron-LM merges passes of interleaved stages, and without a pipeline",
                fix="use the interleaved schedule, or one stage",
            )

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return min(p - rank - 1 + self.options.merges, n)


# ------------------------------------------------------------------------------
# GPipe (Huang et al. 2019): all forward passes, then all backward passes.


class GPipe(WarmupFamily):
    """All forwards, then all backwards: 1F1B that stays in its warm-up."""

    name = "gpipe"
    is_of_megatron = True
    torch_names = ("gpipe",)

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return n


# ------------------------------------------------------------------------------
# Breadth-first pipeline (Lamy-Poirier 2022): all microbatches on a chunk, then the next chunk.


class LoopedBfs(ScheduleFamily):
    """PyTorch's `ScheduleLoopedBFS`: backward passes run in the opposite order of the forwards."""

    name = "looped_bfs"
    most_chunks = None
    torch_names = ("loopedbfs",)

    def build(self, p: int, m: int, n: int) -> Schedule:
        placement, ranks = self.placement(p, m), []
        for stages in placement.virtual_stages:
            forwards = [Action(stage, "F", number) for stage in stages for number in range(n)]
            ranks.append([*forwards, *(action._replace(kind="B") for action in forwards[::-1])])
        return Schedule.of(self.name, placement, n, ranks)


# Interleaved 1F1B (Narayanan et al. 2021): several chunks per stage run groups of microbatches.

_F = KINDS.index("F")


class Interleaved(WarmupFamily):
    """Megatron-LM's `forward_backward_pipelining_with_interleaving`.

    With merged passes, `combined_1f1b_schedule_for_interleaved_pipelining`.

    A group has p microbatches, or as many as a scenario chooses (Megatron-LM's
    --microbatch-group-size-per-virtual-pipeline-stage). The last group may be smaller, but has at
    least p.
    """

    name = "interleaved"
    is_of_megatron = True
    fewest_chunks, most_chunks = 2, None
    torch_names: ClassVar[tuple[str, ...]] = ("interleaved1f1b",)
    chooses_groups = True
    can_merge = True

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        warmup = 2 * (p - rank - 1) + (m - 1) * self.group_of(p, n)
        return min(warmup + self.options.merges, m * n)

    def group_of(self, p: int, n: int) -> int:
        return self.options.group_size or p

    def group_sizes(self, p: int, m: int, n: int) -> Iterator[int]:
        return (size for size in range(p, n + 1) if self._allows_group(size, p, n))

    def _allows_group(self, size: int, p: int, n: int) -> bool:
        return p <= size <= n and not 0 < n % size < p

    def build(self, p: int, m: int, n: int) -> Schedule:
        return replace(super().build(p, m, n), group_size=self.options.group_size)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        size = self.group_of(p, n)
        if self._allows_group(size, p, n):
            return ""
        least = f", of which each has at least {p}, one per stage"
        return f"each chunk runs microbatches in groups of {size}{least * (size != p)}"

    def blocking_slots(self, messages: Messages) -> ExchangeSlots:
        """Return slots in which one call after each block sends its outputs and receives the next
        block's inputs. In the steady phase a block is a forward and a backward, otherwise one
        action (`forward_backward_pipelining_with_interleaving` without overlap_p2p_comm).
        """
        schedule = messages.schedule
        place = np.arange(len(schedule.kind)) - schedule.rank_starts[schedule.rank]
        warmup, cooldown = self.phases(schedule)
        num_steady = np.clip(place, warmup, cooldown) - warmup
        slots = slots_of_blocks(messages, place - (num_steady + 1) // 2, np.True_)
        return replace(slots, receive=(slots.action - 1)[_received_before(messages)])

    def shape_slots(self, messages: Messages) -> ExchangeSlots:
        """Return slots in which a blocking exchange of shapes precedes each transfer.

        After each action, a rank exchanges the shape of its output, and of its next input in the
        same direction. Its first input is received before all actions, its first gradient after
        the warm-up. Source: `forward_backward_pipelining_with_interleaving` with overlap_p2p_comm,
        where `P2PCommunicator._communicate` calls `_communicate_shapes` first.
        """
        schedule, rank = messages.schedule, messages.schedule.rank
        sizes = schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
        warmup, place = self._warmups(*sizes), schedule.cell
        # The block after which each action's input is exchanged; -1 for before all blocks.
        before = np.empty_like(place)
        for is_forward, first in ((True, np.full_like(warmup, -1)), (False, warmup - 1)):
            same = np.flatnonzero((schedule.kind == _F) == is_forward)
            before[same[1:]] = place[same[:-1]]
            begins = same[np.diff(rank[same], prepend=-1) > 0]
            before[begins] = first[rank[begins]]
        slots = slots_of_blocks(messages, place, np.False_)
        receive = slots.starts[rank] + np.where(before < 0, 0, 3 * before + 2)
        return replace(slots, receive=receive[_received_before(messages)].astype(np.int32))


def _received_before(messages: Messages) -> Ints:
    """Return [messages], the action of the receiver before which each message is received.

    It is the consumer, but for messages between the ends of the pipeline. The end that receives
    them is p - 1 passes ahead of the sender, so it receives each message p passes after the
    sender's one and keeps it until the next chunk's turn: groups of more than p microbatches need
    that buffer (`forward_backward_pipelining_with_interleaving`).
    """
    schedule, p = messages.schedule, messages.schedule.num_stages
    num_passes = schedule.num_chunks * schedule.num_microbatches
    # [backward or forward, rank, number of the pass], the action of each pass.
    passes = [np.flatnonzero((schedule.kind == _F) == is_forward) for is_forward in (False, True)]
    actions = np.stack(passes).reshape(2, p, num_passes)
    number = np.empty(len(schedule.kind), np.int32)
    number[actions] = np.arange(num_passes)
    forward, receiver = messages.goes_forward, messages.receiver
    is_wrapped = receiver == np.where(forward, 0, p - 1)
    following = np.minimum(number[messages.producer] + p, num_passes - 1)
    wrapped = actions[forward, receiver, following]
    received: Ints = np.where(is_wrapped, wrapped, messages.consumer)
    return received


# ZB-H1 (Qi et al. 2023): 1F1B whose late weight gradients fill the bubble at the end.


class ZbH1(ScheduleFamily):
    """1F1B in which rank r delays the weight gradients of its first r microbatches.

    It splits only the backward passes whose halves are apart, and those of the cool-down. Source:
    the quick-start patch of sail-sg's zero-bubble repository (`schedules.py`).
    """

    name = "zb_h1"

    def build(self, p: int, m: int, n: int) -> Schedule:
        ranks = OneFOneB().build(p, m, n).ranks
        split = [ranks[0], *([*_split(actions, r)] for r, actions in enumerate(ranks[1:], 1))]
        return Schedule.of(self.name, self.placement(p, m), n, split)


def _split(actions: Sequence[Action], rank: int) -> Iterator[Action]:
    last_forward = max(place for place, action in enumerate(actions) if action.kind == "F")
    waiting: deque[Action] = deque()
    for place, action in enumerate(actions):
        number, is_steady = action.microbatch, place <= last_forward
        if action.kind == "F" or (number >= rank and is_steady):
            yield action
            continue
        yield action._replace(kind="I")
        waiting.append(action._replace(kind="W"))
        if number >= rank and not is_steady:
            yield waiting.popleft()
    yield from waiting


# ------------------------------------------------------------------------------
# ZB-H2 (Qi et al. 2023): more warm-up forwards than 1F1B, and no bubble with equal passes.


class ZbH2(SplitWarmupFamily):
    """Two warm-up forwards per later stage, and two waiting weight gradients per earlier stage.

    Every stage holds up to 2p - 1 microbatches. Stages start and end one after the other, so the
    idle time is at the ends of an iteration.
    """

    name = "zb_h2"

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return min(2 * (p - rank - 1), n)

    def weight_delay(self, rank: int, p: int) -> int:
        return 2 * rank


# ------------------------------------------------------------------------------
# ZB1P (Qi et al. 2024): 1F1B or interleaved 1F1B whose weight gradients fill bubbles.


class Zb1p(SplitWarmupFamily):
    """PyTorch's `ScheduleInterleavedZeroBubble`; with one chunk per stage, ZB1P.

    Microbatches run in rounds of equal size, at least p each if there are so many.
    """

    name = "zb1p"
    most_chunks = None
    torch_names = ("interleavedzerobubble",)

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return min((m - 1) * self.group_of(p, n) + p - rank - 1, m * n)

    def weight_delay(self, rank: int, p: int) -> int:
        return rank

    def group_of(self, p: int, n: int) -> int:
        return n // _rounds(p, n)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        rounds = _rounds(p, n)
        is_uneven = m > 1 and n % rounds
        return f"each chunk runs microbatches in {rounds} equal rounds" if is_uneven else ""


def _rounds(p: int, n: int) -> int:
    return max(1, n // p)


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
