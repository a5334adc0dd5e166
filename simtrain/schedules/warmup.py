"""Orders of warm-up forwards, then alternating forwards and backwards, then the last backwards.

Megatron-LM's schedules have this form (core/pipeline_parallel/schedules.py). They differ in the
number of warm-up forwards and in the order of the chunks.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np

from simtrain.schedules.actions import KINDS, Kind
from simtrain.schedules.exchanges import ExchangeSlots, Messages, slots_of_blocks
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Ints, Schedule


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
            actions[2, ranks, place] = (
                microbatch if is_forward else self.backward_numbers(microbatch)
            )
        starts = np.arange(p + 1, dtype=np.int32) * num_actions
        virtual_stage, kind_of, microbatch_of = actions.reshape(3, -1)
        return Schedule(self.name, placement, n, starts, virtual_stage, kind_of, microbatch_of)

    def backward_numbers(self, forward: Ints) -> Ints:
        """Return the microbatches of the backward passes, given those of the forward passes."""
        return forward

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

    validates_steps = True

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


def first_microbatches(schedule: Schedule, n: int) -> Schedule:
    """Return the schedule without the actions of microbatches from n on."""
    is_kept = schedule.microbatch < n
    starts = np.concatenate([[0], np.cumsum(is_kept)])[schedule.rank_starts].astype(np.int32)
    virtual_stage, kind, microbatch = (
        column[is_kept] for column in (schedule.virtual_stage, schedule.kind, schedule.microbatch)
    )
    return Schedule(schedule.name, schedule.placement, n, starts, virtual_stage, kind, microbatch)
