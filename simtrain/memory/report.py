"""The memory of an iteration: the peak of each stage, what it is made of, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.buffers import (
    FP32_GRADIENTS,
    RECOMPUTED,
    WORKING,
    Buffers,
    lasting_buffers,
    step_buffers,
)
from simtrain.memory.replay import IterationTimeline, Replay
from simtrain.memory.states import ModelStates, model_states
from simtrain.plan import Plan, numbered
from simtrain.schedules import Action

OPTIMIZER_STEP = "optimizer step"

COMPONENTS = ("parameters", "gradients", "optimizer", "activations", "buffers", "allocator")


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a rank of a stage holds at its fullest moment.

    `peak_action` is what it then runs (an action such as 0F3, or None for the optimizer step),
    `peak_op` the op of it, and `peak_time_s` when that starts, if the iteration was run.
    `buffers_bytes` are the buffers by name, `allocator_bytes` the allowance for what is held beside
    tensors.
    """

    stage: int
    states: ModelStates
    activations_bytes: int
    buffers_bytes: Buffers
    allocator_bytes: int
    peak_action: Action | None
    peak_op: str
    peak_time_s: float | None = None

    @property
    def components_bytes(self) -> dict[str, int]:
        """The peak by component."""
        parts = (
            self.states.parameters_bytes,
            self.states.gradients_bytes,
            self.states.optimizer_bytes,
            self.activations_bytes,
            sum(self.buffers_bytes.values()),
            self.allocator_bytes,
        )
        return dict(zip(COMPONENTS, parts, strict=True))

    @property
    def peak_bytes(self) -> int:
        """All components."""
        return sum(self.components_bytes.values())

    @property
    def peak_name(self) -> str:
        """What runs at the peak, in words."""
        return str(self.peak_action or OPTIMIZER_STEP)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Peaks of all stages against the memory of a GPU."""

    capacity_bytes: int
    stages: tuple[StageMemory, ...]

    @property
    def peaks_bytes(self) -> tuple[int, ...]:
        """The peak of each stage."""
        return tuple(stage.peak_bytes for stage in self.stages)

    @property
    def fullest(self) -> StageMemory:
        """The stage with the highest peak, the first of several."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def fits(self) -> bool:
        """Whether every stage stays within the capacity."""
        return self.missing_bytes <= 0

    @property
    def missing_bytes(self) -> int:
        """By how much the fullest stage exceeds the capacity; negative is what is free."""
        return self.fullest.peak_bytes - self.capacity_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "stages": [
                {
                    "stage": stage.stage,
                    "peak_bytes": stage.peak_bytes,
                    "peak_time_s": stage.peak_time_s,
                    "peak_action": stage.peak_name,
                    "peak_op": stage.peak_op,
                    "components_bytes": stage.components_bytes,
                    "buffers_bytes": stage.buffers_bytes,
                }
                for stage in self.stages
            ],
        }


def memory_report(
    plan: Plan, profile: HardwareProfile, ran: IterationTimeline | None = None
) -> MemoryReport:
    """The peaks of a plan's stages, with their times if it was run."""
    replay = Replay.of(plan)
    stages = tuple(
        _stage_memory(_Rank.of(plan, profile, replay, stage), plan, replay, place, ran)
        for stage, place in enumerate(replay.fullest_actions())
    )
    return MemoryReport(profile.gpu.memory_capacity.value, stages)


def peak_bytes(plan: Plan, profile: HardwareProfile) -> int:
    """The peak of the fullest stage, which is all that many questions need."""
    replay, steps = Replay.of(plan), numbered(plan.stage_parameters)
    fullest: dict[int, int] = {}
    for step, dynamic in zip(steps, replay.fullest_bytes().tolist(), strict=True):
        fullest[step] = max(dynamic, fullest.get(step, 0))
    peak = 0
    for step, dynamic in fullest.items():
        rank = _Rank.of(plan, profile, replay, steps.index(step))
        peak = max(peak, rank.running_bytes(dynamic), rank.stepping_bytes)
    return peak


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Bytes of a stage's rank over time: from `times_s[i]` on it holds `held_bytes[i]`."""

    times_s: tuple[float, ...]
    held_bytes: tuple[int, ...]


def memory_curve(
    plan: Plan, profile: HardwareProfile, ran: IterationTimeline, stage: int
) -> MemoryCurve:
    """What a rank of a stage holds, allocator included, while each action runs and after it."""
    replay = Replay.of(plan)
    rank = _Rank.of(plan, profile, replay, stage)
    actions = slice(*plan.schedule.rank_starts[stage : stage + 2].tolist())
    dynamic = np.stack([replay.dynamic_bytes[actions], replay.after_bytes[actions]], axis=1)
    times = np.stack(ran.intervals_s(actions), axis=1)
    return MemoryCurve(
        (0.0, *times.ravel().tolist(), ran.optimizer_start_s(stage)),
        (*map(rank.running_bytes, [0, *dynamic.ravel().tolist()]), rank.stepping_bytes),
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    """What a rank of a stage holds whatever it runs, and its buffers while the optimizer steps."""

    profile: HardwareProfile
    stage: int
    states: ModelStates
    buffers: Buffers
    step_buffers: Buffers

    @classmethod
    def of(cls, plan: Plan, profile: HardwareProfile, replay: Replay, stage: int) -> _Rank:
        parameters = plan.stage_parameters[stage]
        total, experts, in_fp8 = parameters.total, parameters.experts, parameters.in_fp8
        chunks = plan.slices.numbers[stage :: plan.mesh.pp]
        global_bytes = max(
            memory.buffer_bytes for (chunk, _), memory in replay.memories.items() if chunk in chunks
        )
        return cls(
            profile,
            stage,
            model_states(plan.step_options, total, experts, in_fp8),
            lasting_buffers(plan, global_bytes, in_fp8),
            step_buffers(plan, total, global_bytes, experts, in_fp8),
        )

    def running_bytes(self, dynamic_bytes: int) -> int:
        """All that it holds, allocator included, when `dynamic_bytes` come and go."""
        return self._total_bytes(sum(self.buffers.values()) + dynamic_bytes)

    @property
    def stepping_bytes(self) -> int:
        """The same while the optimizer steps."""
        return self._total_bytes(sum(self.step_buffers.values()))

    def _total_bytes(self, further_bytes: int) -> int:
        tensors = self.states.total_bytes + further_bytes
        return tensors + allocator_bytes(self.profile, tensors)

    def memory(self, activations: int, buffers: Buffers, *peak: Any) -> StageMemory:
        """What it holds at a moment that the last fields of `StageMemory` describe."""
        tensors = self.states.total_bytes + activations + sum(buffers.values())
        named = {name: size for name, size in buffers.items() if size}
        allocator = allocator_bytes(self.profile, tensors)
        return StageMemory(self.stage, self.states, activations, named, allocator, *peak)


def _stage_memory(
    rank: _Rank, plan: Plan, replay: Replay, place: int, ran: IterationTimeline | None
) -> StageMemory:
    """The fuller of two moments of a stage: its fullest action's, and the optimizer step."""
    memory = replay.memory(place)
    working = memory.beyond_bytes - memory.recomputed_bytes
    running = rank.memory(
        int(replay.running_bytes[place]),
        rank.buffers | {RECOMPUTED: memory.recomputed_bytes, WORKING: working},
        plan.schedule.action(place),
        memory.op,
        ran.start_s(place) if ran else None,
    )
    step_start_s = ran.optimizer_start_s(rank.stage) if ran else None
    stepping = rank.memory(0, rank.step_buffers, None, FP32_GRADIENTS, step_start_s)
    return max(running, stepping, key=lambda moment: moment.peak_bytes)


def allocator_bytes(profile: HardwareProfile, tensor_bytes: int) -> int:
    """What is held beside tensors: CUDA, NCCL and the driver, and blocks that no tensor fills."""
    memory = profile.memory
    return memory.allocator_reserve.value + round(memory.fragmentation.value * tensor_bytes)
