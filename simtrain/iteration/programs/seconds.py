"""Durations of the parts of an iteration on a machine: passes, transfers, optimizer steps."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, TypeAlias

from simtrain.base.values import dataclass, field
from simtrain.durations.collectives import wire_bytes
from simtrain.durations.model import DurationModel
from simtrain.engine import Engine, Timeline
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.plan import PassVariant, Plan
from simtrain.iteration.programs.parts import (
    BucketPart,
    IterationPart,
    IterationStructure,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
    structure_of,
)
from simtrain.iteration.programs.pass_tasks import (
    PassMachine,
    PassTime,
    RecentCache,
    run_pass,
    simulate_pass,
)
from simtrain.workload.chunk import Parameters
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.ops import Op, total_flops, total_model_flops
from simtrain.workload.optimizer import StepOptions, step_ops
from simtrain.workload.passes import PassOptions, RankPass, record_of, record_pass
from simtrain.workload.work import Collective, FusedAttention, Gemm, GroupedGemm, Product

OpsPart: TypeAlias = ReceiveGatherPart | BucketPart | OptimizerPart
"""Parts of an iteration that are ops one after another."""
_CACHED = 8192
"""Number of passes, and of optimizer steps, whose times a machine caches."""
_new_cache = partial(RecentCache[Any, Any], _CACHED)


@dataclass(frozen=True)
class Machine:
    """A hardware profile with a cache of the times of passes, which `engine` simulates.

    `responses` caches how these times follow factors of durations.
    """

    model: DurationModel
    engine: Engine = "auto"
    responses: RecentCache[Any, Any] = field(default_factory=_new_cache, repr=False)
    _times: RecentCache[RankPass, PassTime] = field(default_factory=_new_cache, repr=False)
    _steps: RecentCache[tuple[StepOptions, Parameters], dict[str, float]] = field(
        default_factory=_new_cache, repr=False
    )
    _pass_machines: dict[tuple[float | None, float, bool, bool], PassMachine] = field(
        default_factory=dict, repr=False
    )

    @classmethod
    def of(cls, profile: HardwareProfile, engine: Engine = "auto") -> Machine:
        return cls(DurationModel(profile), engine)

    @property
    def profile(self) -> HardwareProfile:
        return self.model.profile

    def __reduce__(self) -> tuple[Any, ...]:
        return Machine, (self.model, self.engine)  # a copy fills its own caches

    def time(self, pass_: RankPass) -> PassTime:
        """Return the time of a pass by cause; equal passes are simulated once."""
        return self._times.get(pass_, self._run)

    def timeline(self, pass_: RankPass) -> Timeline:
        """When each op of a pass runs and is launched: task 2i launches op i, task 2i + 1."""
        return run_pass(record_of(pass_), self.pass_machine(pass_.options), self.engine)

    def op_seconds(self, ops: Iterable[Op]) -> float:
        """Return the time of ops that run one after another."""
        return math.fsum(self.model.seconds(op.work) for op in ops)

    def step_seconds(self, options: StepOptions, parameters: Parameters) -> dict[str, float]:
        return self._steps.get((options, parameters), self._run_step)

    def host_issue_s(self, of_stack: float | None = None) -> float:
        """Return the host's time per kernel or message: the software stack's, or the profile's."""
        profile = self.model.profile
        return profile.host.issue.value if of_stack is None else of_stack / profile.host_speed

    def pass_machine(self, options: PassOptions | None = None) -> PassMachine:
        """Return what determines the time of passes; by default the host is the profile's alone."""
        host: tuple[float | None, float, bool, bool] = (None, 0.0, False, False)
        if options is not None:
            host = options.launch_s, options.call_s, options.runs_ahead, options.blocks
        if host not in self._pass_machines:
            launch_s, call_s = self.host_issue_s(host[0]), host[1] / self.profile.call_speed
            times = self.model.seconds, launch_s, self.model.device_load, call_s, *host[2:]
            slice_s = self.profile.host.issue.value
            self._pass_machines[host] = PassMachine(*times, slice_s=slice_s)
        return self._pass_machines[host]

    def _run(self, pass_: RankPass) -> PassTime:
        machine = self.pass_machine(pass_.options)
        return simulate_pass(record_of(pass_), machine, self.engine)

    def _run_step(self, step: tuple[StepOptions, Parameters]) -> dict[str, float]:
        return {name: self.op_seconds(ops) for name, ops in step_ops(*step).items()}


@dataclass(frozen=True)
class IterationSeconds:
    """Durations of all parts of an iteration.

    Args:
        plan: the iteration.
        machine: the hardware.
        structure: determines the tasks of the iteration.
        passes: time of each different pass by cause.
        steps: time of each field of the different optimizer steps.
    """

    plan: Plan
    machine: Machine = field(repr=False)
    structure: IterationStructure = field(repr=False)
    passes: dict[PassVariant, PassTime] = field(repr=False)
    steps: tuple[dict[str, float], ...] = field(repr=False)

    @classmethod
    def of(cls, plan: Plan, machine: Machine) -> IterationSeconds:
        """Simulate each different pass of a plan once."""
        passes = {variant: machine.time(pass_) for variant, pass_ in plan.variants.items()}
        steps = [machine.step_seconds(plan.step_options, each) for each in plan.step_parameters]
        return cls(plan, machine, structure_of(plan), passes, (*steps,))

    def of_part(self, part: IterationPart) -> float:
        match part:
            case PassPart():
                return self._pass_s(part)
            case TransferPart():
                return part.seconds(self.machine.model, self.plan.sent_bytes)
            case ReceiveGatherPart() | BucketPart():
                return self.machine.op_seconds(self.ops_of(part))
            case SynchronizationPart():
                # Posting a message takes the host the time of a kernel launch; the GPU waits.
                post_s = self.machine.host_issue_s(self.plan.scenario.host_issue_s)
                return part.seconds(self.machine.model, post_s)
            case OptimizerPart():
                if part.step is None:
                    return max(step.get(part.name, 0.0) for step in self.steps)
                return self.steps[part.step][part.name]

    def ops_of(self, part: OpsPart) -> tuple[Op, ...]:
        """Return the ops of a part in order, without a step those of the slowest stage."""
        match part:
            case ReceiveGatherPart(num_states=states):
                gather = self.plan.receive_gather
                return (gather,) * states if gather else ()
            case BucketPart():
                return self._bucket_ops(part)
            case OptimizerPart(name=name, step=step):
                if step is None:
                    numbers = range(len(self.steps))
                    step = max(numbers, key=lambda number: self.steps[number].get(name, 0.0))
                return self.plan.steps[step].get(name, ())

    def adapter_load(self, part: IterationPart) -> float:
        """Return the fraction of a GPU's share of adapters that a part uses, per direction.

        The part runs at full speed. 1 is the whole share.
        """
        num_bytes = 0.0
        match part:
            case TransferPart(levels_crossed=crossed, num_states=states) if crossed:
                num_bytes = states * self.plan.sent_bytes
            case BucketPart():
                num_bytes = math.fsum(map(_bytes_out_of_a_node, self._bucket_ops(part)))
        if not num_bytes:
            return 0.0
        return num_bytes / self.of_part(part) / self.machine.profile.adapter_share_bytes_per_s

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs of all GPUs in an iteration: of the model (paper, Appendix A), and those that run.

        Recomputed ones run, and scores that fused attention skips do not.
        """
        of_model = running = 0
        for pass_, times in self.plan.different_passes():
            of_pass = pass_flops(pass_)
            of_model, running = of_model + times * of_pass[0], running + times * of_pass[1]
        if self.plan.recorded:
            running += total_flops(self.plan.recorded.update)  # of Muon, for example
        ranks = self.plan.mesh.size("tp", "cp", "dp")
        return of_model * ranks, running * ranks

    def extrapolated(self) -> tuple[str, ...]:
        """Return the names of ops outside the range that the profile was fitted on."""
        works = {(op.name, op.work) for op in self.all_ops()}
        is_extrapolated = self.machine.model.is_extrapolated
        return tuple(sorted({name for name, work in works if is_extrapolated(work)}))

    def compute_share(self, is_counted: Callable[[Any], bool]) -> float:
        """Return the fraction of kernel time that some works take.

        The time is that of all passes of a replica, with each kernel alone.
        """
        total_s = counted_s = 0.0
        for pass_, times in self.plan.different_passes():
            for segment, number in Counter(record_pass(pass_).segments).items():
                kernels = [op.work for op in segment.ops if stream_of(op) is Stream.COMPUTE]
                for work in kernels:
                    work_s = times * number * self.machine.model.seconds(work)
                    total_s += work_s
                    counted_s += work_s * is_counted(work)
        return counted_s / total_s if total_s else 0.0

    def host_bound_passes(self) -> float:
        """Return the share of the time of all passes of a replica in which GPUs wait for hosts."""
        times = [(num, self.passes[variant]) for variant, num in self.plan.num_passes.items()]
        total_s = math.fsum(num * time.duration_s for num, time in times)
        launch_s = math.fsum(num * time.launch_s for num, time in times)
        return launch_s / total_s if total_s else 0.0

    def all_ops(self) -> Iterator[Op]:
        """Yield every different op of the iteration, some of them several times."""
        for pass_ in (*self.plan.passes.values(), *self.plan.reductions.values()):
            for segment in set(record_pass(pass_).segments):
                yield from segment.ops
        for step in self.plan.steps:
            yield from itertools.chain.from_iterable(step.values())
        if self.plan.mesh.pp > 1 and self.plan.receive_gather:
            yield self.plan.receive_gather
        if self.plan.has_buckets:
            yield from self._bucket_ops(BucketPart(0, 0, 0, is_last=False))
        if self.plan.step_options.gathers_during_forward:
            yield from self._bucket_ops(BucketPart(0, 0, 0, is_last=False, gathers=True))

    def _pass_s(self, part: PassPart) -> float:
        """Return the time of a pass or a span; the last span includes the ops after its layers."""
        time = self.passes[part.variant]
        if part.span is None:
            return time.duration_s
        first, end = layers_of_span(self.plan, part, part.span)
        ends_s = (0.0, *time.layer_ends_s[:-1], time.duration_s)
        return ends_s[end] - ends_s[first]

    def _bucket_ops(self, part: BucketPart) -> tuple[Op, ...]:
        last = self.plan.step_parameters[part.step] if part.is_last else None
        return self.plan.bucket_ops(part.chunk, part.number, last, gathers=part.gathers)


def layers_of_span(plan: Plan, part: PassPart, span: int) -> tuple[int, int]:
    """Return the first layer of a span of a pass, and the one after its last, in its order."""
    layers = plan.buckets[part.variant.chunk].num_layers
    if part.variant.kind == "F":
        layers = layers[::-1]
    first = sum(layers[:span])
    return first, first + layers[span]


def _bytes_out_of_a_node(op: Op) -> float:
    """Return the bytes of a collective that pass a rank's share of its node's adapters.

    A ring leaves each node once, through the shares of all its ranks on the node.
    """
    if not isinstance(op.work, Collective) or op.work.group.inside_one_node:
        return 0.0
    return wire_bytes(op.work) / op.work.group.ranks_per_node


@functools.lru_cache(maxsize=4096)
def pass_flops(pass_: RankPass) -> tuple[int, int]:
    """Return the FLOPs of a pass: of the model (paper, Appendix A), and those that run."""
    numbers = Counter(record_of(pass_).segments)
    counts = [(number, *_segment_flops(segment)) for segment, number in numbers.items()]
    return (
        sum(number * model for number, model, _ in counts),
        sum(number * every for number, _, every in counts),
    )


@functools.lru_cache(maxsize=8192)
def _segment_flops(segment: Segment) -> tuple[int, int]:
    products = [op for op in segment.ops if isinstance(op.work, Product)]
    return total_model_flops(products), total_flops(products)


# The time that no iteration can undercut: its products at the peak rates of the hardware.


def least_seconds(plan: Plan, profile: HardwareProfile) -> float:
    """Return the time of the busiest rank's products, each at the peak rate of its data type.

    Passes of equal chunks may differ in what they recompute: each counts as the shortest one, so
    that no rank is given the work of another.
    """
    chunk_of = plan.model_chunks.numbers
    variants: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for variant, pass_ in plan.passes.items():
        passes = variants.setdefault((variant.chunk, variant.kind), [])
        passes.append((plan.num_passes[variant], _product_seconds(pass_, profile)))
    alike, seconds = Counter(chunk_of), dict.fromkeys(chunk_of, 0.0)
    for (chunk, _), passes in variants.items():
        number = sum(number for number, _ in passes) / alike[chunk]
        seconds[chunk] += number * min(pass_s for _, pass_s in passes)
    ranks = plan.order.placement.virtual_stages
    return max(math.fsum(seconds[chunk_of[place]] for place in rank) for rank in ranks)


def _product_seconds(pass_: RankPass, profile: HardwareProfile) -> float:
    """Return the time of a pass's matrix products and attention at peak rates."""
    segments = Counter(record_of(pass_).segments)
    return math.fsum(
        number * _least_op_seconds(op, profile)
        for segment, number in segments.items()
        for op in segment.ops
    )


def _least_op_seconds(op: Op, profile: HardwareProfile) -> float:
    """Return the time of an op's FLOPs at the peak; 0 if it has none, or no peak is known."""
    match op.work:
        case Gemm() | GroupedGemm() as product:
            peak = profile.peak_flops(product.dtype)
        case FusedAttention() as product:
            peak = profile.gpu.peak_flops.value
        case _:
            return 0.0
    return product.flops / peak if peak else 0.0
