"""What a stage holds, action by action: its schedule replayed.

A stage runs its actions one after another, so that their order alone settles how much it holds;
the timeline says when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.engine import Timeline
from simtrain.iteration import Iteration
from simtrain.memory.moments import Held
from simtrain.memory.working import ActionMemory, pass_memory
from simtrain.programs.iteration import GRADIENT_NORM
from simtrain.programs.pipeline import PipelineTasks, stage_stream
from simtrain.scenario import RecomputePolicy
from simtrain.schedules import Action
from simtrain.workload.chunk import Chunk


@dataclass(frozen=True, slots=True)
class Step:
    """An action of a stage and the bytes of activations beside it.

    `activations_bytes` are kept while it runs (its own, if a forward pass, included) and
    `after_bytes` when it has ended; what it holds beyond them is the buffers of `memory`.
    """

    action: Action
    memory: ActionMemory
    activations_bytes: int
    after_bytes: int

    @property
    def dynamic_bytes(self) -> int:
        """Activations, and what the action holds beyond them."""
        return self.activations_bytes + self.memory.beyond_bytes


def stage_steps(iteration: Iteration, stage: int) -> Iterator[Step]:
    """The actions of a stage in order; forward passes are kept until their backward pass."""
    held = 0
    for action in iteration.schedule.ranks[stage]:
        one = held_of(iteration, iteration.chunk(action.virtual_stage), iteration.recompute(action))
        memory = one.forward if action.kind == "F" else one.backward
        kept = one.outstanding_bytes
        before, held = held, held + (kept if action.kind == "F" else -kept)
        yield Step(action, memory, max(before, held), held)


@dataclass(frozen=True, slots=True)
class Ran:
    """An iteration that was run: when each of its actions took place."""

    timeline: Timeline
    tasks: PipelineTasks

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


def output_bytes(iteration: Iteration, chunk: Chunk) -> int:
    """Bytes of the output that a chunk sends on, where it is held: 2sbh, or this rank's part.

    Without `deallocate_outputs` it waits for the backward pass, as the input of the next stage
    that it is does there (paper, Appendix B).
    """
    scenario = iteration.scenario
    sends = scenario.parallelism.pipeline > 1 and not chunk.has_head
    if scenario.memory.deallocate_outputs or not sends:
        return 0
    shape = iteration.shape
    return shape.local_tokens * shape.hidden * shape.element_bytes


def held_of(iteration: Iteration, chunk: Chunk, policy: RecomputePolicy) -> Held:
    """What the passes of a chunk hold."""
    forward, backward = pass_memory(chunk, policy, iteration.shape, iteration.passes.hide)
    return Held(forward.kept_bytes + output_bytes(iteration, chunk), forward, backward)
