"""A schedule as a grid of time slots, as papers draw it."""

from __future__ import annotations

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.exchanges import Messages
from simtrain.schedules.schedule import Ints, Schedule

_SLOTS = np.array([{"F": 1, "B": 2, "I": 1, "W": 1}[kind] for kind in KINDS])


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


def earliest_slots(schedule: Schedule) -> tuple[Ints, Ints]:
    """Return [actions], start and end of each action that runs as early as its order allows.

    F, I and W take a slot, B two, and messages none.
    """
    messages, needed = Messages.of(schedule), np.full(len(schedule.kind), -1)
    needed[messages.consumer] = messages.producer
    waits, slots = needed.tolist(), _SLOTS[schedule.kind].tolist()
    ends = [-1] * len(slots)
    bounds = schedule.rank_starts.tolist()
    following, free = bounds[:-1], [0] * schedule.num_stages
    waiting = [*range(schedule.num_stages)]
    while waiting:
        for rank in waiting:
            action = following[rank]
            while action < bounds[rank + 1] and (waits[action] < 0 or ends[waits[action]] >= 0):
                arrived = ends[waits[action]] if waits[action] >= 0 else 0
                free[rank] = ends[action] = max(free[rank], arrived) + slots[action]
                action += 1
            following[rank] = action
        waiting = [rank for rank in waiting if following[rank] < bounds[rank + 1]]
    end = np.array(ends)
    return end - np.array(slots), end
