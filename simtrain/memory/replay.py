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
from simtrain.memory.working import PassMemory, pass_memory
from simtrain.plan import PipelineOrder, Plan
from simtrain.programs.iteration_layout import IterationTasks
from simtrain.schedules import KINDS, Kind

Bytes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryReplay:
    """Bytes of activations beside each action of the stages, stage after stage.

    While action i runs, `running_bytes[i]` are kept (its own, if it is a forward pass, included)
    and it holds `extra_bytes[i]` more: the buffers of `memory`. When it has ended `after_bytes[i]`
    are kept. `passes` are the passes that actions run, as in `Plan.passes`.
    """

    order: PipelineOrder
    passes: Mapping[tuple[int, Kind, bool], PassMemory]
    running_bytes: Bytes
    extra_bytes: Bytes
    after_bytes: Bytes

    @classmethod
    def of(cls, plan: Plan) -> MemoryReplay:
        """Keep what forward passes leave until their backward passes; weight gradients may wait."""
        order, most = plan.order, 0
        passes = {key: pass_memory(one) for key, one in plan.passes.items()}
        change, beyond = np.zeros((2, max(order.chunks) + 1, 2, len(KINDS)), object)
        for (chunk, kind, saves_all), memory in passes.items():
            place, output = (chunk, int(saves_all), KINDS.index(kind)), _output_bytes(plan, chunk)
            # I leaves what W needs, which leaves nothing, as B.
            changes = {
                "F": memory.remaining_bytes + output,
                "B": -memory.saved_bytes - output,
                "I": memory.remaining_bytes - memory.saved_bytes - output,
                "W": -memory.saved_bytes,
            }
            change[place], beyond[place] = changes[kind], memory.extra_bytes
            most = max(most, memory.saved_bytes + output + memory.extra_bytes)
        # Sums of absurd sizes are exact too, if slow.
        if most * len(order.schedule.kind) < np.iinfo(np.int64).max:
            change, beyond = change.astype(np.int64), beyond.astype(np.int64)
        places, is_forward = _places(order)
        own = change.ravel()[places]
        # Each stage ends as it begins, with nothing.
        after = np.cumsum(own)
        running = after - np.where(is_forward, 0, own)
        return cls(order, passes, running, beyond.ravel()[places], after)

    @property
    def dynamic_bytes(self) -> Bytes:
        """All that comes and goes, while each action runs."""
        return self.running_bytes + self.extra_bytes

    def fullest_actions(self) -> list[int]:
        """The first of each stage's actions at which most comes and goes."""
        starts = self.order.schedule.rank_starts
        stages = np.split(self.dynamic_bytes, starts[1:-1])
        return [int(start + stage.argmax()) for start, stage in zip(starts, stages, strict=False)]

    def memory(self, place: int) -> PassMemory:
        """What the pass of an action holds."""
        schedule = self.order.schedule
        chunk = self.order.chunks[schedule.virtual_stage[place]]
        return self.passes[chunk, KINDS[schedule.kind[place]], bool(self.order.saves_all[place])]


def _output_bytes(plan: Plan, chunk: int) -> int:
    """Bytes of the output that a chunk sends on, where it is held: 2sbh, or this rank's part.

    Without `deallocate_outputs` it waits for the backward pass, as the input of the next stage
    that it is does there (paper, Appendix B).
    """
    is_last = chunk == plan.model_chunks.numbers[-1]
    if plan.scenario.memory.deallocate_outputs or plan.mesh.pp == 1 or is_last:
        return 0
    return plan.microbatch.local_bytes


@functools.lru_cache(maxsize=512)
def _places(order: PipelineOrder) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The pass of each action as its place in [chunk, keeps, kind], and which are forward."""
    kinds, chunks = order.schedule.kind, np.array(order.chunks)[order.schedule.virtual_stage]
    return len(KINDS) * (2 * chunks + order.saves_all) + kinds, kinds == KINDS.index("F")


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
