"""What a stage holds, action by action: its schedule replayed.

A stage runs its actions one after another, so that their order alone settles how much it holds;
the timeline says when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from simtrain.engine import Timeline
from simtrain.iteration import Iteration
from simtrain.memory.working import ActionMemory, backward_memory, forward_memory
from simtrain.programs.iteration import GRADIENT_NORM
from simtrain.programs.pipeline import PipelineTasks, stage_stream
from simtrain.schedules import Action, Kind
from simtrain.workload.chunk import Chunk

MemoryOf = Callable[[Action], ActionMemory]


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


def stage_steps(iteration: Iteration, memory_of: MemoryOf, stage: int) -> Iterator[Step]:
    """The actions of a stage in order.

    Forward passes are kept until their backward pass; without `deallocate_outputs` their output,
    which the next stage has as its input, waits for it too (paper, Appendix B).
    """
    held = 0
    output_bytes = _output_bytes(iteration)
    last = iteration.schedule.num_virtual_stages - 1
    for action in iteration.schedule.ranks[stage]:
        memory = memory_of(action)
        kept = memory.kept_bytes + (output_bytes if action.virtual_stage != last else 0)
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


def memory_by_action(iteration: Iteration) -> MemoryOf:
    """Replays each distinct action of an iteration once."""
    known: dict[tuple[Chunk, bool, Kind], ActionMemory] = {}

    def memory_of(action: Action) -> ActionMemory:
        chunk, keeps = iteration.chunk(action.virtual_stage), iteration.keeps(action)
        if (chunk, keeps, action.kind) not in known:
            both = _both_passes(iteration, action)
            known[chunk, keeps, "F"], known[chunk, keeps, "B"] = both
        return known[chunk, keeps, action.kind]

    return memory_of


def _both_passes(iteration: Iteration, action: Action) -> tuple[ActionMemory, ActionMemory]:
    stage, microbatch = action.virtual_stage, action.microbatch
    forward, kept = forward_memory(iteration.order(Action(stage, "F", microbatch)))
    backward, left = backward_memory(iteration.order(Action(stage, "B", microbatch)), kept)
    assert not left, f"nothing releases {sorted(left)}"
    return forward, backward


def _output_bytes(iteration: Iteration) -> int:
    """Bytes of the output that a chunk sends on, where it is held: 2sbh, or this rank's part."""
    if iteration.scenario.memory.deallocate_outputs or iteration.schedule.num_stages == 1:
        return 0
    shape = iteration.shape
    return shape.local_tokens * shape.hidden * shape.element_bytes
