"""The order of a pipeline's actions, as one value: a named schedule, its options and its sizes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simtrain.errors import InputError
from simtrain.schedules.actions import KINDS, Kind
from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.stage_placement import StagePlacement

if TYPE_CHECKING:
    from simtrain.schedules.family import ScheduleFamily


@dataclass(frozen=True)
class Order:
    """The actions of each stage, before they are laid out: equal orders have equal actions.

    Args:
        family: the schedules of a name, with options.
        num_stages: ranks of the pipeline.
        num_chunks: chunks per stage.
        num_microbatches: of each replica.
    """

    family: ScheduleFamily
    num_stages: int
    num_chunks: int
    num_microbatches: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.num_stages, self.num_chunks, self.num_microbatches

    @property
    def actions(self) -> Schedule:
        """The actions of each stage.

        Raises:
            InputError: the schedule does not have these sizes (E411 to E413, E430, E458).
        """
        return _actions(self)

    @property
    def num_actions(self) -> Ints:
        # A cache of thousands would keep all given actions in memory.
        return self.actions.num_actions if self.family.is_given else _num_actions(self)

    @property
    def placement(self) -> StagePlacement:
        return self.family.placement(self.num_stages, self.num_chunks)

    @property
    def merges_passes(self) -> bool:
        return self.family.merges

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of the actions."""
        if not self.family.splits_backwards:
            return "F", "B"  # without building it, because searches ask for thousands
        return tuple(KINDS[kind] for kind in np.flatnonzero(self.num_actions.any(axis=(0, 2))))

    @property
    def num_slices(self) -> int:
        return self.family.options.num_slices


@functools.lru_cache(maxsize=64)
def _actions(order: Order) -> Schedule:
    if problems := [*order.family.problems(*order.sizes)]:
        raise InputError(problems)
    return order.family.build(*order.sizes)


@functools.lru_cache(maxsize=4096)
def _num_actions(order: Order) -> Ints:
    return order.actions.num_actions


# ------------------------------------------------------------------------------
# What a scenario chooses of a schedule's order, apart from its sizes.


@dataclass(frozen=True)
class OrderOptions:
    """The options of an order.

    Args:
        group_size: microbatches that a chunk runs before the next chunk does; None for the
            schedule's default.
        merges: some forward passes run merged with backward passes of other microbatches.
        num_slices: slices of each sequence, of which each pass runs one.
    """

    group_size: int | None = None
    merges: bool = False
    num_slices: int = 1


NO_OPTIONS = OrderOptions()
