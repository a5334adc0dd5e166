"""The memory of an iteration: the peak of each stage, its components, and whether it fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.values import dataclass
from simtrain.hardware.interval import PeakErrors
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.buffers import (
    FP32_GRADIENTS,
    GATHERED_PARAMETERS,
    GRADIENT_BUCKET,
    OTHER_TENSORS,
    RECOMPUTED,
    WORKING,
    WORKSPACES,
    Buffers,
    HostMemory,
    ModelStates,
    buffers_of,
    host_memory,
    rank_states,
    workspaces_bytes,
)
from simtrain.iteration.memory.working import MemoryReplay, makes_gradients
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.schedules import Cell
from simtrain.units import GIB, format_bytes, gib, significant
from simtrain.workload.recorded_step import BytesOverTime, RecordedStep

# The one place that decides whether a predicted peak fits in the memory of a GPU, and how probably:
# `run`, `compare`, reports, searches and JSON show its verdict.

_HARDLY = 0.05


class MemoryFit(Enum):
    """Whether a scenario fits.

    SURELY: the upper end of the 90 % interval of its peak is within the memory.
    PERHAPS: the predicted peak is within the memory, and the upper end is not.
    NOT: the predicted peak exceeds the memory.
    """

    SURELY = "fits"
    PERHAPS = "may not fit"
    NOT = "does not fit"


@dataclass(frozen=True, slots=True)
class PeakInterval(PlainData):
    """Where a measured peak lies: from p5 to p95 in 90 % of runs, from p25 to p75 in 50 %.

    Args:
        p5_bytes: 5 % of measured peaks are below. Half are below expected_bytes.
        basis: the runs that it follows from, as a clause.
    """

    json_fields: ClassVar = keys(
        "p5=p5_bytes p25=p25_bytes p50=expected_bytes p75=p75_bytes p95=p95_bytes basis"
    )

    basis: str
    p5_bytes: int
    p25_bytes: int
    expected_bytes: int
    p75_bytes: int
    p95_bytes: int

    @classmethod
    def of(cls, peak_bytes: int, errors: PeakErrors) -> PeakInterval:
        ends = (round(peak_bytes * errors.factor(share)) for share in (0.05, 0.25, 0.5, 0.75, 0.95))
        return cls(errors.basis or "as cases of Megatron-Core's tests", *ends)

    def __repr__(self) -> str:
        return f"<PeakInterval {self.ends}>"

    @property
    def ends(self) -> str:
        return f"{gib(self.p5_bytes)} to {gib(self.p95_bytes)} GiB"


@dataclass(frozen=True, slots=True)
class FitVerdict(PlainData):
    """Whether a scenario fits in memory, from its predicted peak and the interval of that peak.

    Args:
        peak_bytes: predicted peak of the fullest stage.
        capacity_bytes: memory of a GPU, or the part of it that may be used.
        host_fits: the hosts have the memory for what is offloaded to them.
        errors: those of peaks to expect.
    """

    json_fields: ClassVar = keys("state probability")

    peak_bytes: int
    capacity_bytes: int
    host_fits: bool = True
    errors: PeakErrors = PeakErrors()

    @property
    def probability(self) -> float:
        return self.errors.share_below(self.capacity_bytes / self.peak_bytes) * self.host_fits

    @property
    def interval(self) -> PeakInterval:
        return PeakInterval.of(self.peak_bytes, self.errors)

    @property
    def state(self) -> MemoryFit:
        if self.peak_bytes > self.capacity_bytes or not self.host_fits:
            return MemoryFit.NOT
        return (
            MemoryFit.SURELY
            if self.interval.p95_bytes <= self.capacity_bytes
            else MemoryFit.PERHAPS
        )

    @property
    def fits(self) -> bool:
        return self.state is not MemoryFit.NOT

    @property
    def fits_surely(self) -> bool:
        return self.state is MemoryFit.SURELY

    @property
    def doubt(self) -> str:
        """What one's own peaks say, and how probably it fits if that is in doubt, as a clause."""
        expected, ends = gib(self.interval.expected_bytes), self.interval.ends
        basis = f"{self.errors.basis}: expect {expected} GiB, {ends}" if self.errors.basis else ""
        if self.fits_surely or self.probability < _HARDLY:
            return basis
        ends = basis or f"the peak is {ends} nine times in ten"
        return f"{ends}; it fits with {self.probability:.0%}"

    def __repr__(self) -> str:
        return f"<FitVerdict {self}>"

    def __str__(self) -> str:
        ends = self.interval.expected_bytes, self.interval.p5_bytes, self.interval.p95_bytes
        sizes = (self.peak_bytes, self.capacity_bytes, *ends)
        peak, capacity, *expected = (significant(size / GIB, 3) for size in sizes)
        expects = " (expect {}, {}-{})".format(*expected) if self.errors.basis else ""
        is_open = self.state is MemoryFit.PERHAPS
        why = f" (fits with {self.probability:.0%})" if is_open else ""
        why += "" if self.host_fits else ": the host has not enough memory"
        return f"{peak}/{capacity} GiB{expects}: {self.state.value}{why}"


def surely_fitting_bytes(capacity_bytes: int, errors: PeakErrors) -> int:
    """Return the largest predicted peak that surely fits in a capacity."""
    return min(int(capacity_bytes / errors.factor(0.95)), capacity_bytes)


OPTIMIZER_STEP = "optimizer step"

COMPONENTS = ("parameters", "gradients", "optimizer", "activations", "buffers", "allocator")
COMPONENT_LABELS = {name: name for name in COMPONENTS} | {
    "allocator": "driver, NCCL and fragmentation"
}
"""Names of the components in words; `allocator` is everything outside tensors."""


@dataclass(frozen=True, slots=True)
class StageMemory(PlainData):
    """Peak memory of a stage's rank.

    Args:
        stage: number of the stage.
        states: model states.
        activations_bytes: activations that wait for their backward passes.
        buffers_bytes: buffers by name.
        allocator_bytes: allowance for memory outside tensors.
        peak_action: action or merged actions at the peak, such as 0F3; None for the optimizer step.
        peak_op: op at the peak.
        peak_time_s: start of the action; None if the iteration was not simulated.
    """

    json_fields: ClassVar = keys(
        """stage peak_bytes peak_time_s peak_action=peak_name peak_op components_bytes
        buffers_bytes"""
    )

    stage: int
    states: ModelStates
    activations_bytes: int
    buffers_bytes: Buffers
    allocator_bytes: int
    peak_action: Cell | None
    peak_op: str
    peak_time_s: float | None = None

    def __repr__(self) -> str:
        peak = format_bytes(self.peak_bytes)
        return f"<StageMemory of stage {self.stage}: {peak} at {self.peak_name}, {self.peak_op}>"

    @property
    def components_bytes(self) -> dict[str, int]:
        states, buffers_bytes = self.states, sum(self.buffers_bytes.values())
        parts = (
            *(states.parameters_bytes, states.gradients_bytes, states.optimizer_bytes),
            *(self.activations_bytes, buffers_bytes, self.allocator_bytes),
        )
        return dict(zip(COMPONENTS, parts, strict=True))

    @property
    def peak_bytes(self) -> int:
        tensors = self.states.total_bytes + self.activations_bytes
        return tensors + sum(self.buffers_bytes.values()) + self.allocator_bytes

    @property
    def peak_name(self) -> str:
        return str(self.peak_action or OPTIMIZER_STEP)

    @property
    def peak_words(self) -> str:
        action = self.peak_action
        return action.words_on(self.stage) if action else OPTIMIZER_STEP


@dataclass(frozen=True, slots=True, repr=False)
class MemoryReport(PlainData):
    """Peaks of all stages, compared with the memory of a GPU.

    Args:
        capacity_bytes: memory of a GPU.
        stages: the peak of each stage.
        reserve_bytes: the part of each stage's `allocator_bytes` that driver, CUDA context and NCCL
            take; the rest is the allocator's fragmentation.
        host: memory of a node's host, if states are offloaded to it.
        errors: those of peaks to expect.
    """

    json_fields: ClassVar = keys(
        "capacity_bytes fits fit peak_interval_bytes=peak_interval reserve_bytes host stages"
    )

    capacity_bytes: int
    stages: tuple[StageMemory, ...]
    reserve_bytes: int = 0
    host: HostMemory | None = None
    errors: PeakErrors = PeakErrors()

    def __repr__(self) -> str:
        return f"<MemoryReport of {len(self.stages)} stages: {self.fit}>"

    @property
    def peaks_bytes(self) -> tuple[int, ...]:
        return tuple(stage.peak_bytes for stage in self.stages)

    @property
    def fullest(self) -> StageMemory:
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def fits(self) -> bool:
        return self.fit.fits

    @property
    def fit(self) -> FitVerdict:
        host_fits = self.host is None or self.host.fits
        return FitVerdict(self.fullest.peak_bytes, self.capacity_bytes, host_fits, self.errors)

    @property
    def missing_bytes(self) -> int:
        return self.fullest.peak_bytes - self.capacity_bytes

    @property
    def peak_interval(self) -> PeakInterval:
        return self.fit.interval


def memory_report(
    plan: Plan, profile: HardwareProfile, iteration: IterationTimeline | None = None
) -> MemoryReport:
    """Return the peaks of a plan's stages, with their times if `iteration` is given."""
    if plan.recorded:
        return recorded_report(plan, plan.recorded, profile, iteration)
    replay = MemoryReplay.of(plan)
    chunks, fullest = replay.moments.chunks, replay.fullest_moments()
    of_chunks = {each: _StageRank.of(plan, profile, replay, each) for each in {*chunks}}
    ranks = [of_chunks[each] for each in chunks]
    places = replay.moments.places[fullest]
    actions = map(plan.schedule.cell_at, places.tolist())
    actions_s: Sequence[float | None] = [None] * len(fullest)
    steps_s = actions_s
    if iteration:
        start_s, tasks = iteration.timeline.start_s, iteration.tasks
        actions_s, steps_s = start_s[tasks.first[places]].tolist(), start_s[tasks.norms].tolist()
    stages = tuple(
        map(_StageRank.fullest, ranks, itertools.count(), fullest, actions, actions_s, steps_s)
    )
    capacity, reserve = profile.gpu.memory_capacity.value, profile.memory.allocator_reserve.value
    return MemoryReport(capacity, stages, reserve, host_memory(plan, profile))


def peak_bytes(plan: Plan, profile: HardwareProfile) -> int:
    """Return the peak of the fullest stage, faster than `memory_report`."""
    if plan.recorded:
        return memory_report(plan, profile).fullest.peak_bytes
    replay = MemoryReplay.of(plan)
    # Of stages with equal chunks, `dict` keeps the last one, with the highest peak.
    highest = dict(sorted(zip(replay.moments.chunks, replay.stage_peaks, strict=True)))
    ranks = [(_StageRank.of(plan, profile, replay, each), highest[each]) for each in highest]
    return max(max(rank.pass_bytes(peak), rank.step_bytes) for rank, peak in ranks)


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Memory of a stage's rank over time: `held_bytes[i]` from `times_s[i]` onwards."""

    times_s: tuple[float, ...]
    held_bytes: tuple[int, ...]

    def __repr__(self) -> str:
        peak = format_bytes(max(self.held_bytes))
        return f"<MemoryCurve: {len(self.times_s)} points, at most {peak}>"


def memory_curve(
    plan: Plan, profile: HardwareProfile, iteration: IterationTimeline, stage: int
) -> MemoryCurve:
    """Return the memory of a stage's rank, with the allocator, during and after each action.

    That of a recorded program has a point for each op.
    """
    if plan.recorded:
        return recorded_curve(plan, plan.recorded, profile, iteration)
    replay = MemoryReplay.of(plan)
    rank = _StageRank.of(plan, profile, replay, replay.moments.chunks[stage])
    actions = slice(*plan.schedule.rank_starts[stage : stage + 2].tolist())
    dynamic = np.stack([replay.dynamic_bytes[actions], replay.after_bytes[actions]], axis=1)
    # Merged actions are one: the first one's start, the second one's end.
    schedule, shows = plan.schedule, np.ones_like(dynamic, np.bool_)
    shows[:-1, 1] = ~schedule.follows_merged[actions][1:]
    shows[:, 0] = ~schedule.follows_merged[actions]
    running = [rank.pass_bytes(saved_bytes) for saved_bytes in (0, *dynamic[shows].tolist())]
    tasks, timeline = iteration.tasks, iteration.timeline
    starts_s, ends_s = timeline.start_s[tasks.first[actions]], timeline.end_s[tasks.last[actions]]
    times_s = np.stack([starts_s, ends_s], axis=1)[shows].tolist()
    step_s = float(timeline.start_s[tasks.norms[stage]])
    held_bytes = (*running, rank.step_bytes)
    return MemoryCurve((0.0, *times_s, step_s), held_bytes)


@dataclass(frozen=True, slots=True)
class _StageRank:
    """Constant memory of a stage's rank, with its buffers in passes and in the optimizer step."""

    profile: HardwareProfile
    replay: MemoryReplay
    states: ModelStates
    pass_states: ModelStates
    buffers: Buffers
    step_buffers: Buffers
    pass_bytes_held: int
    step_bytes: int

    @classmethod
    def of(
        cls, plan: Plan, profile: HardwareProfile, replay: MemoryReplay, chunks: tuple[int, ...]
    ) -> _StageRank:
        """Read the model states and buffers of a rank with these chunks."""
        stage = replay.moments.chunks.index(chunks)
        parameters, passes = plan.stage_parameters[stage], replay.passes.items()
        global_bytes = max(memory.buffer_bytes for key, memory in passes if key[0] in chunks)
        states = rank_states(plan.step_options, parameters)
        in_passes = states.with_gradients(0) if makes_gradients(plan) else states
        workspaces = {WORKSPACES: sum(workspaces_bytes(plan, profile.memory))}
        reads_fp8 = profile.reads_fp8_both_ways
        every = buffers_of(plan, parameters, global_bytes, chunks, reads_fp8_both_ways=reads_fp8)
        running, stepping = (buffers | workspaces for buffers in every)
        in_pass = in_passes.total_bytes + sum(running.values())
        step = states.total_bytes + sum(stepping.values())
        step_bytes = step + allocator_bytes(profile, step)
        return cls(profile, replay, states, in_passes, running, stepping, in_pass, step_bytes)

    def pass_bytes(self, dynamic_bytes: int = 0) -> int:
        tensors = self.pass_bytes_held + dynamic_bytes
        return tensors + allocator_bytes(self.profile, tensors)

    def fullest(
        self, stage: int, moment: int, action: Cell, action_s: float | None, step_s: float | None
    ) -> StageMemory:
        """Return the higher peak: that of a moment with its action, or of the optimizer step."""
        replay = self.replay
        if self.step_bytes > self.pass_bytes(int(replay.peak_bytes[moment])):
            step = None, FP32_GRADIENTS, step_s
            return _stage_memory(self.profile, stage, self.states, 0, self.step_buffers, *step)
        memory = replay.memories[int(replay.moments.work_of[moment])]
        activations = int(replay.running_bytes[moment])
        exchanged = {
            GATHERED_PARAMETERS: memory.gathered_bytes,
            GRADIENT_BUCKET: memory.bucket_bytes,
        }
        made_bytes = sum(exchanged.values()) + memory.gradients_bytes
        beyond = memory.extra_bytes - memory.recomputed_bytes - made_bytes
        # The peak may come after saved tensors are freed.
        activations += min(0, beyond)
        buffers = self.buffers | {RECOMPUTED: memory.recomputed_bytes, WORKING: max(0, beyond)}
        buffers |= {name: size for name, size in exchanged.items() if size}
        states = self.pass_states
        states = states.with_gradients(states.gradients_bytes + memory.gradients_bytes)
        peak = action, memory.op, action_s
        return _stage_memory(self.profile, stage, states, activations, buffers, *peak)


def _stage_memory(
    profile: HardwareProfile,
    stage: int,
    states: ModelStates,
    activations: int,
    buffers: Buffers,
    *peak: Any,
) -> StageMemory:
    named = {name: size for name, size in buffers.items() if size}
    tensors = states.total_bytes + activations + sum(named.values())
    allocator = allocator_bytes(profile, tensors)
    return StageMemory(stage, states, activations, named, allocator, *peak)


def allocator_bytes(profile: HardwareProfile, tensor_bytes: int) -> int:
    """Return memory outside tensors: CUDA, NCCL, the driver, and fragmentation."""
    memory = profile.memory
    return memory.allocator_reserve.value + round(memory.fragmentation.value * tensor_bytes)


_MOST_BYTES = 1 << 62
_MOST_POINTS = 1_000_000
_NUM_PASSES = 2
"""Passes of a microbatch: forward and backward."""


def recorded_report(
    plan: Plan, step: RecordedStep, profile: HardwareProfile, iteration: IterationTimeline | None
) -> MemoryReport:
    """Return the peak of a recorded program: the most that its ops hold at a time.

    Gradients at the peak are those that exist then; all else that ops allocate are activations.
    """
    passes, before = _over_time(step), step.states
    number = max(range(len(passes)), key=lambda each: passes[each].held.max(initial=-_MOST_BYTES))
    of_pass = passes[number]
    place = int(of_pass.held.argmax())
    gradients = before.gradients + int(of_pass.gradients[place])
    buffers = {OTHER_TENSORS: before.other}
    buffers[WORKSPACES] = sum(workspaces_bytes(plan, profile.memory))
    activations = before.gradients + int(of_pass.held[place]) - gradients
    states = ModelStates(before.parameters, gradients, before.optimizer)
    # The last microbatch is recorded, after the others.
    action = None
    if number < _NUM_PASSES:
        action = plan.schedule.cell_at(len(plan.schedule.kind) - _NUM_PASSES + number)
    time_s = _starts_s(iteration)[number - _NUM_PASSES - 1] if iteration else None
    peak = action, of_pass.names[place], time_s
    stage = _stage_memory(profile, 0, states, activations, buffers, *peak)
    reserve = profile.memory.allocator_reserve.value
    return MemoryReport(profile.gpu.memory_capacity.value, (stage,), reserve)


def recorded_curve(
    plan: Plan, step: RecordedStep, profile: HardwareProfile, iteration: IterationTimeline
) -> MemoryCurve:
    """Return the memory of a recorded program over time, with a point for each op.

    Every microbatch holds what the recorded one does. The gradients of the first one grow over its
    backward pass.
    """
    states = step.states
    constant = states.parameters + states.optimizer + states.other
    constant += sum(workspaces_bytes(plan, profile.memory))
    times_s, tensors = [0.0], [float(constant)]
    starts_s = _starts_s(iteration)
    passes, of_step = _over_time(step)[:_NUM_PASSES], _over_time(step)[_NUM_PASSES]
    running = [*passes * (len(starts_s) // _NUM_PASSES), of_step]
    most_points = max(1, _MOST_POINTS // len(running))
    for number, (of_pass, start_s) in enumerate(zip(running, starts_s, strict=True)):
        if not of_pass.names:
            continue
        end_s = (*starts_s[1:], iteration.time_s)[number]
        # Ops are spread evenly over a pass: the curve shows their order, not their durations. Of
        # many ops in a row, it has the one that holds most.
        firsts = np.arange(0, len(of_pass.names), -(-len(of_pass.names) // most_points))
        shares = firsts / len(of_pass.names)
        is_first = len(running) > _NUM_PASSES + 1 and number < _NUM_PASSES
        made = (shares if number else 0 * shares) if is_first else 1.0
        times_s += (start_s + shares * (end_s - start_s)).tolist()
        peaks = np.maximum.reduceat(of_pass.held, firsts)
        tensors += (constant + peaks + made * states.gradients).tolist()
    held_bytes = [round(each) + allocator_bytes(profile, round(each)) for each in tensors]
    return MemoryCurve((*times_s,), (*held_bytes,))


def _over_time(step: RecordedStep) -> list[BytesOverTime]:
    """Return the memory of each pass, relative to the start of the recorded microbatch."""
    before, gradients, parts = 0, 0, []
    for of_pass in step.memory:
        parts.append(of_pass.shifted(before, gradients))
        if of_pass.names:
            before += int(of_pass.after[-1])
            gradients += int(of_pass.gradients[-1])
    return parts


def _starts_s(iteration: IterationTimeline) -> list[float]:
    tasks, timeline = iteration.tasks, iteration.timeline
    return [*timeline.start_s[tasks.first].tolist(), float(timeline.end_s[tasks.last[-1]])]
