"""Orders of warm-up forwards, then alternating forwards and backwards, then the last backwards.

Megatron-LM's schedules have this form (core/pipeline_parallel/schedules.py). They differ in the
number of warm-up forwards and in the order of the chunks.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from simtrain.schedules.actions import KINDS
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

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        ranks, turns = np.arange(p)[:, None], np.arange(m * n)
        num_warmup = self._warmups(p, m, n)[:, None]
        chunk, microbatch = _turns(m, n, p if self.has_chunks else n)
        forward = np.where(turns < num_warmup, turns, 2 * turns - num_warmup)
        backward = np.where(turns < m * n - num_warmup, num_warmup + 2 * turns + 1, m * n + turns)
        placement = self.placement(p, m)
        virtual_stages = np.array(placement.virtual_stages)
        actions = np.empty((3, p, 2 * m * n), np.int32)
        merges = np.zeros((p, 2 * m * n), np.bool_)
        merges[ranks, forward] = turns >= num_warmup
        for place, kind, chunks in ((forward, "F", chunk), (backward, "B", m - 1 - chunk)):
            actions[0, ranks, place] = virtual_stages[ranks, chunks]
            actions[1, ranks, place] = KINDS.index(kind)
            actions[2, ranks, place] = microbatch
        starts = np.arange(p + 1, dtype=np.int32) * (2 * m * n)
        flags = merges.ravel() if self.merges else None
        virtual_stage, kind_of, microbatch_of = actions.reshape(3, -1)
        columns = starts, virtual_stage, kind_of, microbatch_of
        return Schedule(self.name, placement, n, *columns, flags)

    def most_outstanding(self, p: int, m: int, n: int) -> int:
        """Return the warm-up forwards of the first stage, and the one of its first pair."""
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
        """[ranks], the number of warm-up forwards of each."""
        return np.array([self.num_warmup_forwards(rank, p, m, n) for rank in range(p)])


def _turns(m: int, n: int, group: int) -> tuple[Ints, Ints]:
    """Megatron's schedule table: for each group of microbatches, each chunk in turn runs the group.

    Returns the chunk (0 is the first to run) and the microbatch of each forward, both of shape
    [m * n].
    """
    turns = np.arange(m * n)
    return turns // group % m, turns // (m * group) * group + turns % group
