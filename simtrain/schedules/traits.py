"""What the orders of a schedule show of it, so that no schedule declares it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.order import Order
from simtrain.schedules.order_options import OrderOptions
from simtrain.schedules.schedule import Schedule

if TYPE_CHECKING:
    from simtrain.schedules.family import ScheduleFamily

_STAGES = 2, 4
"""Small pipelines: with a single stage, weight gradients have no bubble to fill."""


@dataclass(frozen=True)
class Traits:
    """What small orders of a schedule have in common.

    Args:
        splits_backwards: some backward passes are split into input and weight gradients (I, W).
        merges: some forward passes run merged with backward passes, in every order.
        alternates: on one chunk per stage, each forward pass of the last stage is followed by its
            backward pass.
    """

    splits_backwards: bool
    merges: bool
    alternates: bool


def traits_of(schedule: ScheduleFamily) -> Traits:
    """Return what orders show of a schedule: without options, which change the order of a few
    passes, but with its slices, which change the passes.
    """
    options = OrderOptions(num_slices=schedule.options.num_slices)
    return _traits(schedule if schedule.options == options else replace(schedule, options=options))


@functools.cache
def _traits(schedule: ScheduleFamily) -> Traits:
    orders = [order.actions for order in small_orders(schedule)]
    of_one_chunk = [actions for actions in orders if actions.placement.interleave == 1]
    return Traits(
        any(actions.splits_backwards for actions in orders),
        any(actions.merges is not None for actions in orders),
        bool(of_one_chunk) and all(map(_alternates, of_one_chunk)),
    )


def small_orders(schedule: ScheduleFamily) -> Iterator[Order]:
    """Yield orders of a few stages with the fewest chunks and about 2 microbatches per stage."""
    for p in _STAGES:
        m = schedule.fewest_chunks
        for n in schedule.near_microbatches(p, m, 2 * p):
            if not any(schedule.problems(p, m, n)):
                yield Order(schedule, p, m, n)
                break


def _alternates(actions: Schedule) -> bool:
    last = slice(actions.rank_starts[-2], actions.rank_starts[-1])
    kind, microbatch = actions.kind[last], actions.microbatch[last]
    return bool(
        (kind[::2] == KINDS.index("F")).all()
        and (kind[1::2] == KINDS.index("B")).all()
        and np.array_equal(microbatch[::2], microbatch[1::2])
    )
