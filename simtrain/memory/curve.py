"""What a stage holds, action by action: its schedule replayed.

A stage runs its actions one after another, so that their order alone settles how much it holds;
the timeline says when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from simtrain.engine import Timeline
from simtrain.memory.chunk import chunk_memories
from simtrain.memory.working import PassMemory
from simtrain.plan import Plan
from simtrain.programs.iteration_layout import GRADIENT_NORM
from simtrain.programs.pipeline import PipelineTasks, stage_stream
from simtrain.schedules import Action


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """An action of a stage and the bytes of activations beside it.

    `activations_bytes` are kept while it runs (its own, if a forward pass, included) and
    `after_bytes` when it has ended; what it holds beyond them is the buffers of `memory`.
    """

    action: Action
    memory: PassMemory
    activations_bytes: int
    after_bytes: int

    @property
    def dynamic_bytes(self) -> int:
        """Activations, and what the action holds beyond them."""
        return self.activations_bytes + self.memory.beyond_bytes


def stage_steps(plan: Plan, stage: int) -> Iterator[MemoryStep]:
    """The actions of a stage in order; forward passes are kept until their backward pass."""
    memories, held = chunk_memories(plan), 0
    for action in plan.schedule.ranks[stage]:
        memory = memories[plan.slices.numbers[action.virtual_stage], plan.keeps(action)]
        before, held = held, held + memory.change_bytes[action.kind]
        while_running = held if action.kind == "F" else before
        yield MemoryStep(action, memory.passes[action.kind], while_running, held)


@dataclass(frozen=True, slots=True)
class IterationTimeline:
    """The timeline of an iteration, and which of its tasks are whose."""

    timeline: Timeline
    tasks: PipelineTasks = field(repr=False)

    def interval_s(self, action: Action) -> tuple[float, float]:
        """Start and end of an action."""
        last = self.tasks.actions[action]
        first, *_ = self.tasks.parts.get(action, (last,))
        return self.timeline.start_s[first], self.timeline.end_s[last]

    def optimizer_start_s(self, stage: int) -> float:
        """The moment at which a stage begins with the norm of its reduced gradients."""
        tasks = self.timeline.program.tasks
        return next(
            start_s
            for task, start_s in zip(tasks, self.timeline.start_s, strict=True)
            if task.name == GRADIENT_NORM and task.stream == stage_stream(stage)
        )
