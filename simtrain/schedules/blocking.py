"""Blocking exchanges of a schedule, as its framework groups messages into calls."""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections import defaultdict

import numpy as np

from simtrain.schedules.exchanges import (
    Exchange,
    ExchangeSlots,
    Message,
    Messages,
    Step,
    asynchronous_slots,
)
from simtrain.schedules.order import Order
from simtrain.schedules.registry import family_of
from simtrain.schedules.schedule import Schedule


def blocking_slots(messages: Messages) -> ExchangeSlots:
    """Return the slots of the actions and of the blocking exchanges between them."""
    if not len(messages):
        return asynchronous_slots(messages)
    return family_of(messages.schedule).blocking_slots(messages)


@functools.lru_cache(maxsize=1024)
def stages_that_wait(order: Order) -> tuple[int, ...]:
    """Return the stages that wait for each other forever if the transfers of an order block."""
    return waiting_stages(order.actions)


def waiting_stages(schedule: Schedule) -> tuple[int, ...]:
    """Return the stages of a schedule that wait for each other forever if its transfers block."""
    messages = Messages.of(schedule)
    slots = blocking_slots(messages)
    ends = np.stack([slots.send, slots.receive])
    # The exchanges of each stage, in order, and the messages of each exchange.
    exchanges, numbers = np.unique(ends, return_inverse=True)
    numbers = numbers.reshape(ends.shape)
    of_exchange: list[list[int]] = [[] for _ in exchanges]
    for message, (send, receive) in enumerate(numbers.T.tolist()):
        of_exchange[send].append(message)
        of_exchange[receive].append(message)
    bounds = np.searchsorted(exchanges, slots.starts).tolist()
    following, num_ends = bounds[:-1], [0] * len(messages)
    arrived = [*bounds[:-1]]
    moves = True
    while moves:
        moves = False
        for stage, end in enumerate(bounds[1:]):
            now = following[stage]
            if now == end:
                continue
            if arrived[stage] == now:
                arrived[stage] += 1
                moves = True
                for message in of_exchange[now]:
                    num_ends[message] += 1
            # An exchange ends when both ends of all of its messages have arrived.
            if all(num_ends[message] == 2 for message in of_exchange[now]):
                following[stage] += 1
                moves = True
    stages = zip(following, bounds[1:], strict=True)
    return tuple(stage for stage, (now, end) in enumerate(stages) if now < end)


def shape_slots(messages: Messages) -> ExchangeSlots:
    """Return the slots if a blocking exchange of shapes precedes each overlapped transfer."""
    return family_of(messages.schedule).shape_slots(messages)


def blocking_steps(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """List each rank's actions and blocking exchanges, in order of execution."""
    messages = Messages.of(schedule)
    slots = blocking_slots(messages)
    sends, receives = defaultdict[int, list[Message]](list), defaultdict[int, list[Message]](list)
    for number in range(len(messages)):
        sends[int(slots.send[number])].append(messages[number])
    for number in np.argsort(messages.consumer).tolist():
        receives[int(slots.receive[number])].append(messages[number])
    steps: list[tuple[int, Step]] = [
        (slot, Exchange(tuple(sends[slot]), tuple(receives[slot]))) for slot in {*sends, *receives}
    ]
    steps += [(int(slot), schedule.action(i)) for i, slot in enumerate(slots.action)]
    steps.sort(key=lambda step: step[0])
    ranks = [bisect_left(steps, start, key=lambda step: step[0]) for start in slots.starts.tolist()]
    return tuple(
        tuple(step for _, step in steps[start:end]) for start, end in itertools.pairwise(ranks)
    )
