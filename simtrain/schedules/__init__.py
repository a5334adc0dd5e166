"""Pipeline schedules: all by name, those of users' files, and blocking exchanges."""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from simtrain.base.input_file import FileVersion
from simtrain.base.plug_ins import Parts
from simtrain.base.strict_yaml import read_text
from simtrain.base.values import replace
from simtrain.errors import InputError, Location
from simtrain.schedules.actions import KINDS, Action, Cell, Kind, MergedActions, actions_of
from simtrain.schedules.dualpipe import DualPipe, DualPipeV
from simtrain.schedules.exchanges import (
    Exchange,
    ExchangeSlots,
    Message,
    Messages,
    Step,
    asynchronous_slots,
    time_slots,
)
from simtrain.schedules.family import NO_OPTIONS, Custom, Order, OrderOptions, ScheduleFamily
from simtrain.schedules.one_f_one_b import (
    GPipe,
    Interleaved,
    LoopedBfs,
    OneFOneB,
    Zb1p,
    ZbH1,
    ZbH2,
    Zbv,
)
from simtrain.schedules.schedule import Schedule, cells_of, most_outstanding, save_all_actions
from simtrain.schedules.stage_placement import (
    StagePlacement,
    back_and_forth,
    common_placements,
    looped,
)

_HOUSE: tuple[ScheduleFamily, ...] = (
    OneFOneB(),
    GPipe(),
    Interleaved(),
    LoopedBfs(),
    ZbH1(),
    ZbH2(),
    Zb1p(),
    Zbv(),
    DualPipeV(),
    DualPipe(),
)
FAMILIES = Parts[ScheduleFamily]("schedules", ScheduleFamily, _HOUSE, [Custom()])
"""The schedules by name. The first with one chunk per stage, and the first with several, are the
defaults. Of equal orders in a file, the first gives the name.
"""
NAMED = Parts[ScheduleFamily]("schedules", ScheduleFamily, _HOUSE)
"""The schedules that a scenario can name."""


def default_name(num_chunks: int) -> str:
    """Return the schedule that a scenario with so many chunks per stage has by default."""
    has_chunks = num_chunks > 1
    return next(family.name for family in NAMED.values() if family.has_chunks is has_chunks)


def family_of(schedule: Schedule) -> ScheduleFamily:
    """Return the family of a schedule, with its groups and its merged passes."""
    if schedule.name == Custom.name:
        return Custom(actions=schedule)
    merges = schedule.merges is not None
    return FAMILIES[schedule.name].with_options(OrderOptions(schedule.group_size, merges))


def build(name: str, p: int, m: int, n: int, options: OrderOptions = NO_OPTIONS) -> Schedule:
    """Build the named schedule on p stages with m chunks per stage and n microbatches.

    Options that the schedule does not have are left out.

    Raises:
        InputError: the schedule does not have these sizes (E411 to E413, E430).
    """
    return Order(NAMED[name].with_options(options), p, m, n).actions


def gpipe(p: int, n: int) -> Schedule:
    """Run all n forwards, then all n backwards, on p stages. Raises InputError (E411)."""
    return build(GPipe.name, p, 1, n)


def one_f_one_b(p: int, n: int) -> Schedule:
    """Return 1F1B of n microbatches on p stages. Raises InputError (E411)."""
    return build(OneFOneB.name, p, 1, n)


def interleaved(p: int, m: int, n: int) -> Schedule:
    """Return interleaved 1F1B. Raises InputError (E411, or E413 when p does not divide n)."""
    return build(Interleaved.name, p, m, n)


_MOST_SHOWN = 4
_MOST_BYTES = 16 << 20  # 1,024 stages of 1,024 microbatches


@functools.lru_cache(maxsize=64)
def read_schedule(version: FileVersion) -> Schedule:
    """Read the schedule of a file.

    If its order is that of a named schedule, it has that name.

    Raises:
        InputError: the file cannot be read (E101 to E103), is not a schedule (E401 to E407,
            E409), or its ranks wait for each other (E408).
    """
    file = version.file
    text = read_text(Path(file), _MOST_BYTES)
    schedule = Schedule.from_csv(text, Custom.name, file, _placements)
    slots = time_slots(schedule)
    if (slots < 0).any():
        raise _deadlock(schedule, slots.tolist(), text, file)
    same = (named for named in _named(schedule) if replace(named, name=schedule.name) == schedule)
    return next(same, schedule)


def _placements(p: int, m: int) -> Iterator[StagePlacement]:
    yield from common_placements(p, m)
    yield from (family.placement(p, m) for family in NAMED.values())


def _named(schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedules of its sizes that have names, in the order of their registration.

    Those with another placement, or without its split backward passes, are not built.
    """
    p, m, n = schedule.num_stages, schedule.placement.interleave, schedule.num_microbatches
    for family in NAMED.values():
        is_split = schedule.splits_backwards and not family.splits_backwards
        if is_split or family.placement(p, m) != schedule.placement:
            continue
        for option in dict.fromkeys((family, family.with_options(OrderOptions(merges=True)))):
            if not any(option.problems(p, m, n)):
                yield Order(option, p, m, n).actions


def _deadlock(schedule: Schedule, slots: list[int], text: str, file: str) -> InputError:
    """Say for which actions the first ranks wait that do not finish."""
    messages = Messages.of(schedule)
    awaited = dict(zip(messages.consumer.tolist(), messages.producer.tolist(), strict=True))
    starts = schedule.rank_starts.tolist()
    stuck = {
        rank: next(
            place
            for place in range(start, end)
            if slots[place] < 0 and place in awaited and slots[awaited[place]] < 0
        )
        for rank, (start, end) in enumerate(pairwise(starts))
        if -1 in slots[start:end]
    }
    waits = [
        f"rank {rank} waits at {schedule.action(place)} for {schedule.action(awaited[place])}"
        for rank, place in stuck.items()
    ]
    more = f", and {len(waits) - _MOST_SHOWN} more ranks wait" if len(waits) > _MOST_SHOWN else ""
    rank, place = next(iter(stuck.items()))
    lines = text.splitlines()
    column = [*cells_of(lines[rank])][int(schedule.cell[place])][0]
    return InputError.of(
        "E408",
        f"{', '.join(waits[:_MOST_SHOWN])}{more}",
        Location(file, rank + 1, column, lines[rank]),
        f"move {schedule.action(awaited[place])} before the action at which its rank waits",
        "a rank runs its actions in order, and waits at each until its input has arrived",
    )


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


__all__ = [
    "FAMILIES",
    "KINDS",
    "NAMED",
    "Action",
    "Cell",
    "Custom",
    "Exchange",
    "ExchangeSlots",
    "FileVersion",
    "Kind",
    "MergedActions",
    "Message",
    "Messages",
    "Order",
    "OrderOptions",
    "Schedule",
    "ScheduleFamily",
    "StagePlacement",
    "Step",
    "actions_of",
    "asynchronous_slots",
    "back_and_forth",
    "blocking_slots",
    "blocking_steps",
    "build",
    "default_name",
    "family_of",
    "gpipe",
    "interleaved",
    "looped",
    "most_outstanding",
    "one_f_one_b",
    "read_schedule",
    "save_all_actions",
    "shape_slots",
    "stages_that_wait",
    "time_slots",
    "waiting_stages",
]
