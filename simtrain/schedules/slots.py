"""A schedule as a grid of time slots, as papers draw it."""

from __future__ import annotations

import numpy as np

from simtrain.schedules.exchanges import Messages
from simtrain.schedules.schedule import Ints, Schedule


def time_slots(schedule: Schedule) -> Ints:
    """The slot of each action if every action takes one slot and messages take none, [action].

    An action runs in the first slot after the action before it on its rank and after the action
    whose message it needs. Actions of a deadlock have slot -1.
    """
    messages = Messages.of(schedule)
    awaited = np.full(len(schedule.kind), -1)
    awaited[messages.consumer] = messages.producer
    needed, slots = awaited.tolist(), [-1] * len(schedule.kind)
    following, ends = schedule.rank_starts[:-1].tolist(), schedule.rank_starts[1:].tolist()
    ranks, now = range(schedule.num_stages), 0
    while ready := [
        rank
        for rank in ranks
        if (action := following[rank]) < ends[rank]
        and (needed[action] < 0 or slots[needed[action]] >= 0)
    ]:
        for rank in ready:
            slots[following[rank]] = now
            following[rank] += 1
        now += 1
    return np.array(slots, np.int32)
