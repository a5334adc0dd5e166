"""A schedule as a grid of time slots, as papers draw it."""

from __future__ import annotations

import numpy as np

from simtrain.schedules.exchanges import Messages
from simtrain.schedules.schedule import Ints, Schedule


def time_slots(schedule: Schedule) -> Ints:
    """The slot of each action if every action takes one slot and messages take none, [action].

    An action runs in the first slot after the action before it on its rank and after the action
    whose message it needs. Merged actions share a slot. Actions of a deadlock have slot -1.
    """
    messages = Messages.of(schedule)
    awaited = np.full(len(schedule.kind), -1)
    awaited[messages.consumer] = messages.producer
    needed: list[int] = awaited.tolist()
    slots = [-1] * len(schedule.kind)
    following, ends = schedule.rank_starts[:-1].tolist(), schedule.rank_starts[1:].tolist()
    merges = (np.zeros_like(slots) if schedule.merges is None else schedule.merges).tolist()
    ranks, now = range(schedule.num_stages), 0

    def is_ready(action: int) -> bool:
        return needed[action] < 0 or slots[needed[action]] >= 0

    while ready := [
        (rank, following[rank] + 1 + merges[following[rank]])
        for rank in ranks
        if following[rank] < ends[rank]
        and is_ready(following[rank])
        and (not merges[following[rank]] or is_ready(following[rank] + 1))
    ]:
        for rank, end in ready:
            slots[following[rank] : end] = [now] * (end - following[rank])
            following[rank] = end
        now += 1
    return np.array(slots, np.int32)
