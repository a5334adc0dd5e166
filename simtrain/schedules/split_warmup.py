"""Orders of a warm-up family whose backward passes are split into input and weight gradients."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from simtrain.schedules.exchanges import ExchangeSlots, Messages
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.warmup import WarmupFamily


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
        """Return the order of actions of legal sizes."""
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
        """Return the slots of any order: Megatron-LM has no exchanges of split passes."""
        return ScheduleFamily.blocking_slots(self, messages)

    def most_outstanding(self, p: int, m: int, n: int) -> int:
        """Return the first stage's forward passes that wait for their weight gradients."""
        return super(WarmupFamily, self).most_outstanding(p, m, n)


def first_microbatches(schedule: Schedule, n: int) -> Schedule:
    """Return the schedule without the actions of microbatches from n on."""
    is_kept = schedule.microbatch < n
    starts = np.concatenate([[0], np.cumsum(is_kept)])[schedule.rank_starts].astype(np.int32)
    virtual_stage, kind, microbatch = (
        column[is_kept] for column in (schedule.virtual_stage, schedule.kind, schedule.microbatch)
    )
    return Schedule(schedule.name, schedule.placement, n, starts, virtual_stage, kind, microbatch)
