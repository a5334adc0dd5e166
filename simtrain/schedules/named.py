"""Schedules that a scenario names, each with what the rest of simtrain needs to know of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from simtrain.schedules.names import ScheduleName
from simtrain.schedules.orders import build
from simtrain.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A schedule that exists for many sizes.

    Args:
        build: returns the schedule for numbers of stages, chunks per stage and microbatches.
        splits_backwards: whether its backward passes are split into halves (I and W).
        has_proved_bound: whether `search.iteration_bound` is proved to be a lower bound of its
            iterations. Without a proof a search prunes by the busiest stage alone, and never calls
            its result exact.
    """

    build: Callable[[int, int, int], Schedule]
    splits_backwards: bool = False
    has_proved_bound: bool = False


SCHEDULES: dict[str, NamedSchedule] = {
    name: NamedSchedule(functools.partial(build, name), has_proved_bound=True)
    for name in get_args(ScheduleName)
}
"""All named schedules. Megatron-LM's are proved by the chains of `search.iteration_bound`."""
