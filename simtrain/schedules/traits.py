"""What the orders of a schedule show of it, so that no schedule declares it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.order import Order
from simtrain.schedules.order_options import OrderOptions
from simtrain.schedules.schedule import Schedule

if TYPE_CHECKING:
    from simtrain.schedules.family import ScheduleFamily

_STAGES = range(2, 17)
"""Stages of small orders: a single stage has no bubble that weight gradients could fill."""
_ORDERS = 2
"""Small orders of a schedule that are built."""
_SLICES = 2
"""Most slices of a microbatch in them: more show nothing else, and a file may have any number."""


@dataclass(frozen=True)
class Traits:
    """What small orders of a schedule show.

    Args:
        splits_backwards: some backward passes are split into input and weight gradients (I, W).
        merges: some forward passes run merged with backward passes.
        alternates: on one chunk per stage, each forward pass of the last stage is followed by its
            backward pass.
    """

    splits_backwards: bool
    merges: bool
    alternates: bool


def traits_of(family: ScheduleFamily) -> Traits:
    """Return what small orders show of a schedule.

    They have its slices, which are all that its passes run, and no other option.
    """
    options = OrderOptions(num_slices=min(family.options.num_slices, _SLICES))
    return _traits(family if family.options == options else replace(family, options=options))


@functools.cache
def _traits(family: ScheduleFamily) -> Traits:
    orders = [order.actions for order in islice(_small_orders(family), _ORDERS)]
    of_one_chunk = [actions for actions in orders if actions.placement.interleave == 1]
    return Traits(
        any(actions.splits_backwards for actions in orders),
        any(actions.merges is not None for actions in orders),
        bool(of_one_chunk) and all(map(_alternates, of_one_chunk)),
    )


def _small_orders(family: ScheduleFamily) -> Iterator[Order]:
    """Yield orders with the fewest chunks and about 2 microbatches per stage, small ones first."""
    m = family.fewest_chunks
    for p in _STAGES:
        for n in family.near_microbatches(p, m, 2 * p):
            if not any(family.problems(p, m, n)):
                yield Order(family, p, m, n)
                break


def _alternates(actions: Schedule) -> bool:
    last = slice(actions.rank_starts[-2], actions.rank_starts[-1])
    kind, microbatch = actions.kind[last], actions.microbatch[last]
    return bool(
        (kind[::2] == KINDS.index("F")).all()
        and (kind[1::2] == KINDS.index("B")).all()
        and np.array_equal(microbatch[::2], microbatch[1::2])
    )
