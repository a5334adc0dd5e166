"""Memory of the stages of a recorded pipeline: replays each stage's actions, pass by pass.

A pass allocates and frees what its ops did when they were recorded. A forward pass leaves what its
backward pass reads, the first backward pass of a chunk leaves gradients, and with fully_shard the
first forward pass leaves gathered parameters, which the reduction frees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.buffers import OTHER_TENSORS, WORKSPACES, workspaces_bytes
from simtrain.iteration.memory.report import (
    MemoryCurve,
    MemoryReport,
    StageMemory,
    allocator_bytes,
)
from simtrain.iteration.memory.states import ModelStates
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.microbatch_turns import turn_rule, turns_of
from simtrain.schedules import KINDS
from simtrain.workload.recorded.pipeline import LAST, RecordedChunk, RecordedPipeline
from simtrain.workload.recorded.step import BytesOverTime

_FORWARD = KINDS.index("F")


@dataclass(frozen=True, slots=True)
class PassOfStage:
    """A pass that a stage runs, with its memory.

    Args:
        memory: relative to the start of the iteration.
        action: its place in the schedule; None for the reduction and the optimizer.
    """

    memory: BytesOverTime
    action: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that the pass holds."""
        return int(self.memory.held.max())


def passes_of_stage(plan: Plan, pipeline: RecordedPipeline, stage: int) -> Iterator[PassOfStage]:
    """Yield the passes of a stage in order: its actions, reductions of gradients, optimizers."""
    schedule, total_bytes, gradients = plan.schedule, 0, 0
    numbers = plan.order.placement.virtual_stages[stage]
    turns = turns_of(schedule, turn_rule(plan))
    alone = turns[schedule.last_backwards[0]] == LAST and schedule.num_microbatches == 1
    if alone:  # the last backward pass, which is recorded after others, makes the gradients too
        gradients = sum(_made_gradients(pipeline, pipeline.blocks[each]) for each in numbers)
        total_bytes = gradients
    for place in range(*schedule.rank_starts[stage : stage + 2].tolist()):
        block = pipeline.blocks[int(schedule.virtual_stage[place])]
        step = pipeline.step(block, int(turns[place]))
        memory = step.memory["forward" if schedule.kind[place] == _FORWARD else "backward"]
        yield PassOfStage(memory.shifted(total_bytes, gradients), place)
        total_bytes += int(memory.after[-1])
        gradients += int(memory.gradients[-1])
    reduced, blocks = 0, [pipeline.blocks[number] for number in numbers]
    for block in blocks:
        if reduction := pipeline.reduction(block):
            memory = reduction.memory["backward"]
            yield PassOfStage(memory.shifted(total_bytes, gradients))
            total_bytes += int(memory.after[-1])
            reduced += int(memory.gradients[-1])
            gradients -= _made_gradients(pipeline, block)
    for block in blocks:
        memory = pipeline.step(block, 0).memory["optimizer"]
        if memory.ops:
            yield PassOfStage(memory.shifted(total_bytes, gradients + reduced))
            total_bytes += int(memory.after[-1])


def _made_gradients(pipeline: RecordedPipeline, block: RecordedChunk) -> int:
    """Return the bytes of the gradients that the first backward pass of a chunk makes."""
    return int(pipeline.step(block, 1).memory["backward"].gradients[-1])


def stages_report(
    plan: Plan,
    pipeline: RecordedPipeline,
    profile: HardwareProfile,
    iteration: IterationTimeline | None,
) -> MemoryReport:
    """Return the peak of each stage: the most that its passes hold at a time."""
    stages = range(plan.order.placement.num_ranks)
    peaks = tuple(_peak(plan, pipeline, profile, stage, iteration) for stage in stages)
    reserve = profile.memory.allocator_reserve.value
    return MemoryReport(profile.gpu.memory_capacity.value, peaks, reserve)


def _peak(
    plan: Plan,
    pipeline: RecordedPipeline,
    profile: HardwareProfile,
    stage: int,
    iteration: IterationTimeline | None,
) -> StageMemory:
    fullest = max(passes_of_stage(plan, pipeline, stage), key=lambda each: each.peak_bytes)
    memory, place = fullest.memory, int(fullest.memory.held.argmax())
    gradients, op = int(memory.gradients[place]), memory.ops[place]
    parameters, optimizer, other = _constant(plan, pipeline, stage)
    states = ModelStates(parameters, gradients, optimizer)
    buffers = {OTHER_TENSORS: other, WORKSPACES: sum(workspaces_bytes(plan, profile.memory))}
    activations = int(memory.held[place]) - gradients
    named = {name: size for name, size in buffers.items() if size}
    tensors = states.total_bytes + activations + sum(named.values())
    action, time_s = None, None
    if fullest.action is not None:
        action = plan.schedule.cell_at(fullest.action)
    if iteration:
        time_s = _start_s(plan, iteration, stage, fullest.action)
    return StageMemory(
        *(stage, states, activations, named, allocator_bytes(profile, tensors), action),
        f"{op.module}: {op.op}" if op.module else op.op,
        time_s,
    )


def _constant(plan: Plan, pipeline: RecordedPipeline, stage: int) -> tuple[int, int, int]:
    """Return the bytes of parameters, of the optimizer's states and of everything else."""
    chunks = [
        pipeline.program.chunks[pipeline.blocks[number].number].states
        for number in plan.order.placement.virtual_stages[stage]
    ]
    return (
        sum(states.parameters_bytes for states in chunks),
        sum(states.optimizer_bytes for states in chunks),
        sum(states.other_bytes for states in chunks),
    )


def _start_s(plan: Plan, iteration: IterationTimeline, stage: int, action: int | None) -> float:
    """Return the start of an action, or the end of a stage's last one."""
    tasks, timeline = iteration.tasks, iteration.timeline
    if action is None:
        return float(timeline.end_s[tasks.last[plan.schedule.rank_starts[stage + 1] - 1]])
    return float(timeline.start_s[tasks.first[action]])


def stage_curve(
    plan: Plan,
    pipeline: RecordedPipeline,
    profile: HardwareProfile,
    iteration: IterationTimeline,
    stage: int,
) -> MemoryCurve:
    """Return the memory of a stage over time: during and after each of its passes."""
    constant = sum(_constant(plan, pipeline, stage)) + sum(workspaces_bytes(plan, profile.memory))
    tasks, timeline = iteration.tasks, iteration.timeline
    times_s, held_bytes = [0.0], [constant]
    for each in passes_of_stage(plan, pipeline, stage):
        if each.action is None:
            times_s.append(_start_s(plan, iteration, stage, None))
            held_bytes.append(constant + each.peak_bytes)
            continue
        start_s = _start_s(plan, iteration, stage, each.action)
        end_s = float(timeline.end_s[tasks.last[each.action]])
        times_s += [start_s, end_s]
        held_bytes += [constant + each.peak_bytes, constant + int(each.memory.after[-1])]
    tensors = np.array(held_bytes)
    with_allocator = [
        num_bytes + allocator_bytes(profile, num_bytes) for num_bytes in tensors.tolist()
    ]
    return MemoryCurve((*times_s,), (*with_allocator,))
