"""What each stage holds, action by action: its schedule replayed.

A stage runs its actions one after another, so that their order alone settles how much it holds; the
timeline says when.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import Timeline
from simtrain.memory.chunk import ChunkMemory, Load, chunk_memories
from simtrain.memory.working import PassMemory
from simtrain.plan import PipelineOrder, Plan
from simtrain.programs.iteration_layout import IterationTasks
from simtrain.schedules import KINDS

Bytes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Bytes of activations beside each action of the stages, stage after stage.

    While action i runs, `running_bytes[i]` are kept (its own, if it is a forward pass, included)
    and it holds `beyond_bytes[i]` more: the buffers of `memory`. When it has ended `after_bytes[i]`
    are kept.
    """

    order: PipelineOrder
    memories: Mapping[Load, ChunkMemory]
    running_bytes: Bytes
    beyond_bytes: Bytes
    after_bytes: Bytes

    @classmethod
    def of(cls, plan: Plan) -> Replay:
        """Keep what forward passes leave until their backward passes; weight gradients may wait."""
        order, memories = plan.order, chunk_memories(plan)
        # Sums of absurd sizes are exact too, if slow.
        most = max(one.outstanding_bytes + one.beyond_bytes for one in memories.values())
        is_small = most * len(order.schedule.kind) < np.iinfo(np.int64).max
        shape = 2, max(order.chunks) + 1, 2, len(KINDS)
        change, beyond = np.zeros(shape, np.int64 if is_small else object)
        for (chunk, keeps), memory in memories.items():
            for kind, size in memory.change_bytes.items():
                change[chunk, int(keeps), KINDS.index(kind)] = size
            for kind, one in memory.passes.items():
                beyond[chunk, int(keeps), KINDS.index(kind)] = one.beyond_bytes
        passes, is_forward = _passes(order)
        changes = change.ravel()[passes]
        # Each stage ends as it begins, with nothing.
        after = np.cumsum(changes)
        running = after - np.where(is_forward, 0, changes)
        return cls(order, memories, running, beyond.ravel()[passes], after)

    @property
    def dynamic_bytes(self) -> Bytes:
        """All that comes and goes, while each action runs."""
        return self.running_bytes + self.beyond_bytes

    def fullest_bytes(self) -> Bytes:
        """The most that comes and goes on each stage."""
        return np.maximum.reduceat(self.dynamic_bytes, self.order.schedule.rank_starts[:-1])

    def fullest_actions(self) -> list[int]:
        """The first of each stage's actions at which most comes and goes."""
        starts = self.order.schedule.rank_starts
        stages = np.split(self.dynamic_bytes, starts[1:-1])
        return [int(start + stage.argmax()) for start, stage in zip(starts, stages, strict=False)]

    def memory(self, place: int) -> PassMemory:
        """What the pass of an action holds."""
        schedule = self.order.schedule
        load = self.order.chunks[schedule.virtual_stage[place]], bool(self.order.keeps[place])
        return self.memories[load].passes[KINDS[schedule.kind[place]]]


@functools.lru_cache(maxsize=512)
def _passes(order: PipelineOrder) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The pass of each action as its place in [chunk, keeps, kind], and which are forward."""
    kinds, chunks = order.schedule.kind, np.array(order.chunks)[order.schedule.virtual_stage]
    return len(KINDS) * (2 * chunks + order.keeps) + kinds, kinds == KINDS.index("F")


@dataclass(frozen=True, slots=True, eq=False)
class IterationTimeline:
    """The timeline of an iteration, and which of its tasks are whose."""

    timeline: Timeline
    tasks: IterationTasks = field(repr=False)

    def intervals_s(self, places: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Starts and ends of the actions at some places of the schedule."""
        first, last = self.tasks.first[places], self.tasks.last[places]
        return self.timeline.start_s[first], self.timeline.end_s[last]

    def start_s(self, place: int) -> float:
        """The start of the action at a place of the schedule."""
        return float(self.timeline.start_s[self.tasks.first[place]])

    def optimizer_start_s(self, stage: int) -> float:
        """The moment at which a stage begins with the norm of its reduced gradients."""
        return float(self.timeline.start_s[self.tasks.norms[stage]])
