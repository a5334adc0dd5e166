"""Copies of saved activations to the host and back, as dependencies on the tasks of a pipeline.

A unit of tensors is copied to the host when the pass that saves them has ended, or its span if the
pass is cut into layers. It is copied back while the stage runs the backward pass, or the span of
one, that precedes the one that reads it: one chunk or one layer ahead. The first backward pass of a
stage has none before it, and its tensors come back during the action before it. Tensors stay on the
GPU if they would come back before they are saved.

Sources: Megatron-LM's fine_grained_activation_offload.py (`on_group_commit_forward`,
`on_group_start_backward`, `should_bulk_offload`) for layers; sail-sg's zero-bubble repository
(scheduler/offloading.py) for chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simtrain.engine.compiled import Flags, Ints
from simtrain.iteration.offload import OffloadLayout
from simtrain.iteration.programs.pipeline import PipelineTasks
from simtrain.schedules import KINDS, Schedule

_FORWARD, _WEIGHTS = KINDS.index("F"), KINDS.index("W")


@dataclass(frozen=True, slots=True, eq=False)
class OffloadCopies:
    """Copies of units: each to the host, and back.

    Args:
        saving, reading: [copies], action that saves the tensors, and backward pass that reads them.
        units: [copies], number of the unit in its chunk.
        savers, readers: [copies], the task of each of these actions that saves or reads the unit.
        triggers: [copies], the task that ends before a unit may be copied back; -1 for none.
    """

    saving: Ints
    reading: Ints
    units: Ints
    savers: Ints
    readers: Ints
    triggers: Ints

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        pipeline: PipelineTasks,
        layout: OffloadLayout,
        chunk: Ints,
        saves_all: Flags,
        by_layer: Flags,
    ) -> OffloadCopies:
        """Return all copies of a pipeline, stage by stage in the order of the forward passes.

        Args:
            schedule: the actions of each stage.
            pipeline: their tasks.
            layout: the units that are copied.
            chunk: [actions], number of each action's chunk among the different ones.
            saves_all: [actions], whether each action's microbatch recomputes nothing.
            by_layer: [actions], whether each action is cut into layers.
        """
        copied = np.array(layout.copies_stage)[schedule.virtual_stage]
        microbatch = schedule.virtual_stage * schedule.num_microbatches + schedule.microbatch
        reads = (schedule.kind != _FORWARD) & (schedule.kind != _WEIGHTS)
        reader_of = np.zeros(microbatch.max() + 1, np.int32)
        reader_of[microbatch[reads]] = np.flatnonzero(reads)
        columns = []
        for action in np.flatnonzero((schedule.kind == _FORWARD) & copied).tolist():
            for unit, exists in enumerate(layout.units[chunk[action]][int(saves_all[action])]):
                if exists:
                    columns.append((action, unit))
        saving, units = np.array(columns, np.int32).reshape(-1, 2).T
        reading = reader_of[microbatch[saving]]
        sizes = [[len(of_pass) for of_pass in of_chunk] for of_chunk in layout.units]
        num_units = np.array(sizes)[chunk[saving], saves_all[saving].astype(int)]

        def tasks(actions: Ints, *, forward: bool) -> Ints:
            """Return the task of each action that runs the layers of a unit."""
            number = pipeline.last[actions] - pipeline.first[actions]
            place = units if forward else num_units - 1 - units
            # An action that is not cut has one task. Buckets cut it into fewer than its layers.
            span = np.where(by_layer[actions], place, number * forward)
            buckets = (number > 0) & ~by_layer[actions] & (num_units > 1)
            for copy in np.flatnonzero(buckets).tolist():
                layers = np.array(layout.bucket_layers[chunk[actions[copy]]])
                ends = np.cumsum(layers[::-1] if forward else layers)
                span[copy] = np.searchsorted(ends, place[copy], side="right")
            chosen: Ints = pipeline.first[actions] + span
            return chosen

        savers, readers = tasks(saving, forward=True), tasks(reading, forward=False)
        before = _tasks_before(schedule, pipeline, np.flatnonzero(reads).astype(np.int32))[readers]
        stays = before <= savers
        first_own = pipeline.own_starts[:-1][schedule.rank[saving]]
        triggers = np.where(before > first_own, before - 1, -1).astype(np.int32)
        arrays = saving, reading, units, savers, readers, triggers
        return cls(*(array[~stays] for array in arrays))

    @property
    def by_reader(self) -> Ints:
        """The copies in the order in which their stages read them; the last layer first."""
        order: Ints = np.lexsort((-self.units, self.readers))
        return order


def _tasks_before(schedule: Schedule, pipeline: PipelineTasks, readers: Ints) -> Ints:
    """Return [tasks], for each span of a backward pass the span before it on its stage.

    For a stage's first one, it is the first task of the action before; -1 without such an action.
    """
    before = np.full(pipeline.num_tasks, -1, np.int32)
    counts = pipeline.last[readers] - pipeline.first[readers] + 1
    tasks = np.repeat(pipeline.first[readers], counts)
    tasks += np.arange(len(tasks)) - np.repeat(np.cumsum(counts) - counts, counts)
    stages = np.repeat(schedule.rank[readers], counts)
    before[tasks[1:]] = tasks[:-1]
    for first in np.flatnonzero(np.append(True, stages[1:] != stages[:-1])).tolist():
        action = readers[np.searchsorted(pipeline.first[readers], tasks[first])]
        has_action = action > schedule.rank_starts[stages[first]]
        before[tasks[first]] = pipeline.first[action - 1] if has_action else -1
    return before
