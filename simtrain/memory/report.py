"""The memory of an iteration: the peak of each stage, what it is made of, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration import Iteration
from simtrain.memory.buffers import Buffers, lasting_buffers, step_buffers
from simtrain.memory.curve import MemoryOf, Step, memory_by_action, stage_steps
from simtrain.memory.states import ModelStates, model_states
from simtrain.schedules import Action

OPTIMIZER_STEP = "optimizer step"

COMPONENTS = ("parameters", "gradients", "optimizer", "activations", "buffers", "allocator")


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a rank of a stage holds at its fullest moment.

    `peak_action` is what it then runs (an action such as 0F3, or the optimizer step) and `peak_op`
    the op of it; `buffers_bytes` are the buffers by name, `allocator_bytes` the allowance for what
    is held beside tensors.
    """

    stage: int
    states: ModelStates
    activations_bytes: int
    buffers_bytes: Buffers
    allocator_bytes: int
    peak_action: Action | None
    peak_op: str

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
                    "peak_action": stage.peak_name,
                    "peak_op": stage.peak_op,
                    "components_bytes": stage.components_bytes,
                    "buffers_bytes": stage.buffers_bytes,
                }
                for stage in self.stages
            ],
        }


def memory_report(iteration: Iteration) -> MemoryReport:
    """The peaks of an iteration's stages; it need not have run."""
    memory_of = memory_by_action(iteration)
    return MemoryReport(
        capacity_bytes=iteration.profile.gpu.memory_capacity.value,
        stages=tuple(
            _stage_memory(iteration, memory_of, stage)
            for stage in range(iteration.schedule.num_stages)
        ),
    )


def _stage_memory(iteration: Iteration, memory_of: MemoryOf, stage: int) -> StageMemory:
    """The fullest of the moments of a stage: an action's, or the optimizer step."""
    parameters = iteration.parameters(stage)
    lasting = lasting_buffers(iteration.scenario, iteration.shape, parameters)
    stepping = step_buffers(iteration.scenario, iteration.shape, parameters.total)
    fullest = max(stage_steps(iteration, memory_of, stage), key=lambda step: step.dynamic_bytes)
    while_stepping = sum(stepping.values())
    if while_stepping > fullest.dynamic_bytes + sum(lasting.values()):
        activations, buffers, action, op = 0, stepping, None, "gradients in fp32"
    else:
        activations, action = fullest.activations_bytes, fullest.action
        buffers, op = lasting | _buffers_of(fullest), fullest.memory.op
    states = model_states(iteration.scenario, parameters.total)
    tensors = states.total_bytes + activations + sum(buffers.values())
    named = {name: size for name, size in buffers.items() if size}
    allocator = allocator_bytes(iteration.profile, tensors)
    return StageMemory(stage, states, activations, named, allocator, action, op)


def _buffers_of(step: Step) -> Buffers:
    memory = step.memory
    return {
        "recomputed tensors": memory.recomputed_bytes,
        "working tensors": memory.beyond_bytes - memory.recomputed_bytes,
    }


def allocator_bytes(profile: HardwareProfile, tensor_bytes: int) -> int:
    """What is held beside tensors: CUDA, NCCL and the driver, and blocks that no tensor fills."""
    memory = profile.memory
    return memory.allocator_reserve.value + round(memory.fragmentation.value * tensor_bytes)
