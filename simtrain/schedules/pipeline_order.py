"""The order of a pipeline's actions, as a value that determines the tasks of an iteration."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simtrain.schedules.actions import KINDS, Kind
from simtrain.schedules.files import ScheduleVersion, read_schedule
from simtrain.schedules.registry import NAMED, build
from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.stage_placement import StagePlacement
from simtrain.schedules.vocabulary.split import VocabularySplit
from simtrain.schedules.window import save_all_actions


@dataclass(frozen=True, slots=True, eq=False)
class NewOrder:
    """An order that neither a name nor a file has; equal to itself alone."""

    schedule: Schedule


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """The order of each stage's actions, and the passes that they run.

    Args:
        schedule_name: the name of a schedule, the file of another order, or a new order.
        group_size: as in `schedules.build`.
        num_stages, num_chunks, num_microbatches: as in `schedules.build`.
        chunks: [virtual stages], the number of each one's chunk among the different ones.
        num_saving_all: [stages], number of outstanding forward passes that save everything.
        merges: a named schedule that can merge passes does so.
        num_slices: slices of each sequence, of which each pass runs one.
        vocabulary: how a named schedule splits the vocabulary over its stages.
    """

    schedule_name: str | ScheduleVersion | NewOrder
    num_stages: int
    num_chunks: int
    num_microbatches: int
    chunks: tuple[int, ...]
    num_saving_all: tuple[int, ...]
    merges: bool = False
    group_size: int | None = None
    num_slices: int = 1
    vocabulary: VocabularySplit | None = None

    @property
    def schedule(self) -> Schedule:
        """The actions of each stage."""
        sizes = self.num_stages, self.num_chunks, self.num_microbatches
        return schedule_of(
            self.schedule_name,
            *sizes,
            self.group_size,
            merges=self.merges,
            num_slices=self.num_slices,
            vocabulary=self.vocabulary,
        )

    @property
    def merges_passes(self) -> bool:
        """Whether some passes are merged."""
        name = self.schedule_name
        if not isinstance(name, str):
            return self.schedule.merges is not None
        return self.merges or NAMED[name].merges

    @property
    def placement(self) -> StagePlacement:
        """The rank of each virtual stage."""
        name = self.schedule_name
        if not isinstance(name, str):
            return self.schedule.placement
        family = NAMED[name].splitting(self.vocabulary)
        return family.placement(self.num_stages, self.num_chunks)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of the actions."""
        name = self.schedule_name
        if isinstance(name, str) and not NAMED[name].splits_backwards:
            return "F", "B"  # without building it, because searches ask for thousands
        return tuple(KINDS[kind] for kind in np.flatnonzero(self.num_actions.any(axis=(0, 2))))

    @property
    def num_actions(self) -> Ints:
        """[virtual stages, kinds, slices], the number of actions."""
        name = self.schedule_name
        if not isinstance(name, str):
            return self.schedule.num_actions
        sizes = self.num_stages, self.num_chunks, self.num_microbatches
        options = self.merges, self.num_slices, self.vocabulary
        return _num_actions(name, *sizes, self.group_size, *options)

    @property
    def num_passes(self) -> Ints:
        """[different chunks, kinds, 2, slices], the number of passes.

        Those of the third axis save what recompute leaves, or everything.
        """
        counts = np.zeros((max(self.chunks) + 1, len(KINDS), 2, self.num_slices), np.int64)
        if not any(self.num_saving_all):
            np.add.at(counts[:, :, 0], np.array(self.chunks), self.num_actions)
            return counts
        schedule, chunks = self.schedule, np.array(self.chunks)
        saves_all = self.saves_all.astype(np.int64)
        columns = chunks[schedule.virtual_stage], schedule.kind, saves_all, schedule.slice_number
        places = np.ravel_multi_index(columns, counts.shape)
        return np.bincount(places, minlength=counts.size).reshape(counts.shape)

    @property
    def saves_all(self) -> NDArray[np.bool_]:
        """[actions], whether each action's microbatch saves everything on its chunk."""
        return save_all_actions(self.schedule, self.num_saving_all)


def schedule_of(
    order: str | ScheduleVersion | NewOrder,
    p: int,
    m: int,
    n: int,
    group_size: int | None = None,
    *,
    merges: bool = False,
    num_slices: int = 1,
    vocabulary: VocabularySplit | None = None,
) -> Schedule:
    """Return the schedule of a file, a new one, or that of a name with the sizes of `build`."""
    if isinstance(order, NewOrder):
        return order.schedule
    if isinstance(order, ScheduleVersion):
        return read_schedule(order)
    return build(
        order,
        p,
        m,
        n,
        group_size,
        merges=merges,
        num_slices=num_slices,
        vocabulary=vocabulary,
    )


@functools.lru_cache(maxsize=4096)
def _num_actions(
    name: str,
    p: int,
    m: int,
    n: int,
    group_size: int | None,
    merges: bool,
    num_slices: int,
    vocabulary: VocabularySplit | None,
) -> Ints:
    """Return `Schedule.num_actions`, which searches ask of more orders than `build` remembers."""
    return build(
        name, p, m, n, group_size, merges=merges, num_slices=num_slices, vocabulary=vocabulary
    ).num_actions
