"""Memory of a node's host that offloaded states and activations need."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine import Timeline
from simtrain.engine.compiled import Floats, Ints
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.working import (
    Bytes,
    MemoryReplay,
    moments_of,
    pass_memory,
    unsharded,
)
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.parts import IterationPart, OffloadPart, PassPart, offloaded_bytes
from simtrain.iteration.programs.pipeline import spread
from simtrain.iteration.programs.seconds import layers_of_span
from simtrain.units import format_bytes, gib
from simtrain.workload.chunk import Parameters
from simtrain.workload.passes import Pass
from simtrain.workload.record import record_pass
from simtrain.workload.step_options import StepOptions
from simtrain.workload.work import FP32_BYTES

# Memory while activations are copied to the host: of the GPUs, and of the host.
#
# A tensor stays on the GPU until its copy to the host ends, and again from the start of its copy
# back (PyTorch's allocator gives the memory to others when the stream of the copy has passed it).
# The host holds it from the start of the one to the end of the other. So these bytes follow from
# the timeline.


@dataclass(frozen=True, slots=True, eq=False)
class OffloadMemory:
    """The copies of an iteration: when they run and how many bytes they move.

    Args:
        timeline: when each task runs.
        num_stages: pipeline stages.
        out, back: [copies], the tasks of copies to the host, and from the host.
        task_bytes: [tasks], bytes of each copy; 0 for other tasks.
    """

    timeline: Timeline
    num_stages: int
    out: Ints
    back: Ints
    task_bytes: Bytes

    @classmethod
    def of(cls, iteration: IterationTimeline) -> OffloadMemory:
        tasks, plan = iteration.tasks, iteration.seconds.plan
        sizes = np.zeros(len(tasks.parts), np.int64)
        leaves = np.zeros(len(tasks.parts), np.bool_)
        for number, part in enumerate(tasks.parts):
            if isinstance(part, OffloadPart):
                sizes[number] = offloaded_bytes(plan, part.chunk, part.saves_all)[part.unit]
                leaves[number] = part.to_host
        task_bytes, leaves = sizes[tasks.part_of], leaves[tasks.part_of]
        copies = np.flatnonzero(task_bytes > 0).astype(np.int32)
        out, back = copies[leaves[copies]], copies[~leaves[copies]]
        return cls(iteration.timeline, tasks.num_stages, out, back, task_bytes)

    def host_bytes(self, stage: int) -> int:
        timeline = self.timeline
        _, sums = self._steps(stage, timeline.start_s, timeline.end_s)
        return int(sums.max(initial=0))

    def least_away(self, stage: int, start_s: Floats, end_s: Floats) -> Bytes:
        """Return [intervals], the least bytes of a stage that are not on the GPU in an interval.

        The end of an interval does not belong to it. An interval without length is a moment.
        """
        timeline = self.timeline
        moments_s, away = self._steps(stage, timeline.end_s, timeline.start_s)
        away = np.concatenate([[0], away, [np.iinfo(np.int64).max]])
        # Element i + 1 is what is away from moment i on. The first element of an interval is what
        # was away before its first moment.
        first = np.searchsorted(moments_s, start_s, side="right")
        last = np.maximum(np.searchsorted(moments_s, end_s, side="left"), first) + 1
        least: Bytes = np.minimum.reduceat(away, np.stack([first, last], axis=1).ravel())[::2]
        return least

    def _stages_of(self, copies: Ints) -> Ints:
        """Return [copies], the stage of each one."""
        stages: Ints = self.timeline.program.graph.stream_of[copies] % self.num_stages
        return stages

    def _steps(self, stage: int, leaves_s: Floats, returns_s: Floats) -> tuple[Floats, Bytes]:
        """Return the moments at which copies change a sum of bytes, and the sum from each one on.

        Bytes are added at `leaves_s` of copies to the host and removed at `returns_s` of copies
        back. At one moment, bytes are added first.
        """
        out, back = (copies[self._stages_of(copies) == stage] for copies in (self.out, self.back))
        times_s = np.concatenate([leaves_s[out], returns_s[back]])
        changes = np.concatenate([self.task_bytes[out], -self.task_bytes[back]])
        order = np.lexsort((-changes, times_s))
        return times_s[order], np.cumsum(changes[order])


def with_offload(replay: MemoryReplay, plan: Plan, iteration: IterationTimeline) -> MemoryReplay:
    """Return the replay without the bytes that are on the host meanwhile."""
    tasks, timeline, schedule = iteration.tasks, iteration.timeline, plan.schedule
    copies, is_pass = (
        OffloadMemory.of(iteration),
        [isinstance(part, PassPart) for part in tasks.parts],
    )
    tensors, saved = np.zeros((2, len(tasks.parts)), np.int64)
    for number in np.flatnonzero(is_pass).tolist():
        tensors[number], saved[number] = _bytes_of(plan, tasks.parts[number])
    counts = tasks.last - tasks.first + 1
    actions, numbers = spread(np.arange(len(counts)), counts)
    task = tasks.first[actions] + numbers
    part = tasks.part_of[task]
    least, after_least = np.zeros(len(task), np.int64), np.zeros(len(counts), np.int64)
    for stage in range(tasks.num_stages):
        chosen = schedule.rank[actions] == stage
        ends_s = timeline.end_s[tasks.last[schedule.rank == stage]]
        least[chosen] = copies.least_away(
            stage, timeline.start_s[task[chosen]], timeline.end_s[task[chosen]]
        )
        after_least[schedule.rank == stage] = copies.least_away(stage, ends_s, ends_s)
    peaks = replay.running_bytes[actions] - saved[part] + tensors[part] - least
    peak = np.maximum.reduceat(peaks, np.flatnonzero(numbers == 0))
    extra = np.minimum(replay.extra_bytes, peak)
    return replace(
        replay,
        running_bytes=peak - extra,
        extra_bytes=extra,
        after_bytes=replay.after_bytes - after_least,
    )


def _bytes_of(plan: Plan, part: IterationPart) -> tuple[int, int]:
    """Return the tensors of a pass, or of a span of it, at its peak, and its saved tensors."""
    assert isinstance(part, PassPart)
    if part.kind == "R":
        return 0, 0
    pass_ = unsharded(plan.passes[part.chunk, part.kind, part.saves_all])
    layers = None if part.span is None else layers_of_span(plan, part, part.span)
    return _peak_bytes(pass_, layers), pass_memory(pass_).saved_bytes


@functools.lru_cache(maxsize=4096)
def _peak_bytes(pass_: Pass, layers: tuple[int, int] | None) -> int:
    """Return the most tensors while the ops of some layers of a pass run; of all without layers.

    The ops before the first layer belong to it, and those after the last one to the last.
    """
    record, moments = record_pass(pass_), moments_of(pass_)
    first, end = 0, record.num_ops
    if layers is not None and layers[0] > 0:
        first = record.starts[record.layer_ends[layers[0] - 1]]
    if layers is not None and layers[1] < len(record.layer_ends):
        end = record.starts[record.layer_ends[layers[1] - 1]]
    of_ops = (moment.held_bytes for moment in moments[first:end])
    return max(of_ops, default=pass_memory(pass_).saved_bytes)


def host_states_bytes(options: StepOptions, parameters: Parameters) -> int:
    """Return the bytes of a rank's states on the host: gradients, and the optimizer's states.

    ZeRO-Offload, Section 3, counts 2 + 12 bytes per parameter. Adam reads gradients in fp32, so
    those in another type exist twice.
    """
    if not options.offloads:
        return 0
    trained = parameters.trained
    number = options.held(trained.total, trained.experts, from_stage=1)
    converted = FP32_BYTES if options.gradient_bytes != FP32_BYTES else 0
    return number * (options.gradient_bytes + converted + sum(options.state_bytes))


@dataclass(frozen=True, slots=True)
class HostMemory(PlainData):
    """Memory of a node's host that holds what is offloaded.

    Args:
        needed_bytes: the most that the ranks of a node need, if they need it at the same time.
        capacity_bytes: memory of the host; None if the profile does not say it.
        states_bytes: the part of `needed_bytes` that model states are.
    """

    json_fields: ClassVar = keys("needed_bytes capacity_bytes states_bytes fits")

    needed_bytes: int
    capacity_bytes: int | None
    states_bytes: int = 0

    def __repr__(self) -> str:
        capacity = "" if self.capacity_bytes is None else f" of {format_bytes(self.capacity_bytes)}"
        return f"<HostMemory {format_bytes(self.needed_bytes)}{capacity}>"

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.needed_bytes <= self.capacity_bytes

    @property
    def subject(self) -> str:
        if not self.states_bytes:
            return "activations"
        has_more = self.needed_bytes > self.states_bytes
        return "offloaded states" + (" and activations" if has_more else "")

    @property
    def shortage(self) -> str:
        """What does not fit: "activations need 12 GiB of a node's host, which has 8 GiB"."""
        needs = f"{self.subject} need {gib(self.needed_bytes)} GiB of a node's host"
        return f"{needs}, which has {gib(self.capacity_bytes or 0)} GiB"

    @classmethod
    def of(
        cls, plan: Plan, profile: HardwareProfile, iteration: IterationTimeline | None
    ) -> HostMemory:
        """Add up the peaks of the ranks of each node, which has consecutive ranks.

        A plan that copies activations needs the iteration.
        """
        options, stages = plan.step_options, range(plan.mesh.pp)
        states = [host_states_bytes(options, parameters) for parameters in plan.stage_parameters]
        needed = states
        if plan.offloads and iteration:
            copies = OffloadMemory.of(iteration)
            needed = [states[stage] + copies.host_bytes(stage) for stage in stages]
        link, gpus = profile.host_link, profile.cluster.gpus_per_node.value
        memory = link.memory if link else None
        capacity_bytes = memory.value if memory else None
        return cls(_on_a_node(plan, gpus, needed), capacity_bytes, _on_a_node(plan, gpus, states))


def _on_a_node(plan: Plan, per_node: int, of_stages: list[int]) -> int:
    """Return the most bytes of the ranks of a node, given those of a rank of each stage."""
    mesh, stride = plan.mesh, plan.mesh.stride("pp")
    if stride >= per_node:
        return per_node * max(of_stages)
    together = max(1, per_node // stride)
    nodes = (of_stages[first : first + together] for first in range(0, mesh.pp, together))
    return stride * max(map(sum, nodes))
