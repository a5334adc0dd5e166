"""Pipeline schedules in files of users, in the format of PyTorch's pipelining.

PyTorch reads the same files (`_PipelineScheduleRuntime._load_csv`, compute only); torchtitan calls
them pipeline_parallel_schedule_csv.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from simtrain.base.input_file import FileVersion
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError, Location
from simtrain.schedules.exchanges import Messages, time_slots
from simtrain.schedules.family import Custom
from simtrain.schedules.order import Order, OrderOptions
from simtrain.schedules.registry import NAMED
from simtrain.schedules.schedule import Schedule, cells_of
from simtrain.schedules.stage_placement import StagePlacement, common_placements

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
