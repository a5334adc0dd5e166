"""Blocking exchanges of a schedule, as its framework groups messages into calls."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict

import numpy as np

from simtrain.errors import InputError, Problem
from simtrain.schedules.actions import KINDS
from simtrain.schedules.exchanges import (
    Exchange,
    ExchangeSlots,
    Message,
    Messages,
    Step,
    asynchronous_slots,
)
from simtrain.schedules.registry import family_of
from simtrain.schedules.schedule import Schedule


def blocking_slots(messages: Messages) -> ExchangeSlots:
    """Return the slots of the actions and of the blocking exchanges between them.

    Raises:
        InputError: the schedule splits its backward passes, or does not say which messages share
            a blocking exchange (E421).
    """
    if not len(messages):
        return asynchronous_slots(messages)
    _check_full_backwards(messages.schedule)
    family = family_of(messages.schedule)
    if not family.blocks:
        raise _has_no_blocking_exchanges(family.name)
    return family.blocking_slots(messages)


def shape_slots(messages: Messages) -> ExchangeSlots:
    """Return the slots if a blocking exchange of shapes precedes each overlapped transfer."""
    return family_of(messages.schedule).shape_slots(messages)


def blocking_steps(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """List each rank's actions and blocking exchanges, in order of execution.

    Raises:
        InputError: as `blocking_slots`.
    """
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


def _check_full_backwards(schedule: Schedule) -> None:
    split = np.flatnonzero(schedule.kind > KINDS.index("B"))
    if len(split):
        message = f"{schedule.action(split[0])} in a schedule with blocking exchanges"
        reason = "Megatron's blocking schedules have only forwards (F) and full backwards (B)"
        fix = "write each I and W as one B, or overlap the pipeline's communication"
        raise InputError([Problem("E421", message, reason=reason, fix=fix)])


def _has_no_blocking_exchanges(name: str) -> InputError:
    message = f"a {name} schedule with blocking exchanges"
    reason = "Megatron's schedules say which messages a blocking exchange has; other orders do not"
    fix = "name a schedule of Megatron, or overlap the pipeline's communication"
    return InputError([Problem("E421", message, reason=reason, fix=fix)])
