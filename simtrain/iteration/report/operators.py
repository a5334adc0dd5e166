"""The operators of a stage: shape, work, time, bottleneck, and the profile entries behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from simtrain.base.extras import require
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.values import dataclass
from simtrain.durations.bottlenecks import Bottleneck, BottleneckFinder, Limit
from simtrain.durations.collectives import wire_bytes
from simtrain.durations.model import DurationModel
from simtrain.hardware.entries import entry_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.parts import SynchronizationPart, TransferPart
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.iteration.report.spans import Spans
from simtrain.iteration.report.stage_ops import OpKey, OpSeconds, OpWork, stage_ops
from simtrain.scenario.software import load_stack
from simtrain.units import format_bytes, format_seconds
from simtrain.workload.ops import Phase
from simtrain.workload.work import (
    Collective,
    Elementwise,
    FusedAttention,
    Gemm,
    GroupedGemm,
    HostWork,
)

# Tables of a result, as lists of rows.

Records = list[dict[str, Any]]


class Rows:
    """Base class of tables."""

    __slots__ = ()

    def records(self) -> Records:
        """Return the rows as dicts, with a unit in each name."""
        raise NotImplementedError

    def frame(self) -> Any:
        """Return the rows as a pandas.DataFrame.

        Raises:
            InputError: pandas is not installed (E701).
        """
        require("a frame", "pandas", instead=", or use records() or Result.to_dict()")
        import pandas

        return pandas.DataFrame(self.records())


Basis = Literal["fitted", "published", "extrapolated"]
HOST_ISSUE, HOST_CALL, SLOWDOWN = "host.issue", "software.host_call", "overlap.slowdown"


@dataclass(frozen=True, slots=True)
class EntrySource:
    """An entry of a profile or of a software stack that a time depends on.

    Args:
        entry: its dotted name.
        value: in base units.
        source: where the value comes from.
        fitted_on: measurements that it was fitted to; None if it was copied.
    """

    entry: str
    value: Any
    source: str
    fitted_on: str | None = None


@dataclass(frozen=True, slots=True)
class Operator(PlainData):
    """Equal ops of an iteration on one rank of a stage, with sums over all of them.

    Args:
        name, phase: name and phase of the ops.
        cause: cause in the breakdown that includes their exposed time, such as "compute".
        shape: shape of the work of one op, as text.
        count: number of times that the rank runs the op.
        flops, model_flops: FLOPs that run, and FLOPs of the model (MFU).
        num_bytes: bytes that cross HBM, or that the rank sends.
        alone_s: time without concurrent ops.
        total_s: time for which they run.
        exposed_s: exposed time. The exposed times of a cause add up to the breakdown.
        bottleneck: the limit, and the entries that their time is proportional to.
        basis: source of the main entry: fitted to measurements, or published; or extrapolated,
            outside the range that the profile was fitted on.
    """

    json_fields: ClassVar = keys(
        """op=name phase cause shape count flops model_flops bytes=num_bytes alone_s total_s
        exposed_s hidden_s flops_per_s bytes_per_s limit entry=bottleneck.entry entries=shares
        basis"""
    )

    name: str
    phase: Phase
    cause: str
    shape: str
    count: int
    flops: int
    model_flops: int
    num_bytes: float
    alone_s: float
    total_s: float
    exposed_s: float
    bottleneck: Bottleneck | None
    basis: Basis

    def __repr__(self) -> str:
        return f"<Operator {self.name}, {self.phase}: {format_seconds(self.exposed_s)} exposed>"

    @property
    def hidden_s(self) -> float:
        return self.total_s - self.exposed_s

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.total_s if self.total_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.total_s if self.total_s else 0.0

    @property
    def limit(self) -> str | None:
        return str(self.bottleneck.limit) if self.bottleneck else None

    @property
    def shares(self) -> dict[str, float]:
        return self.bottleneck.shares if self.bottleneck else {}


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Limits of a GPU.

    Args:
        memory_bandwidth_bytes_per_s: of HBM.
        peak_flops_per_s: by data type of products.
    """

    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class StageOperators(Rows, PlainData):
    """All operators of a stage, sorted by exposed time.

    Their exposed times, the wait for kernel launches and the bubble add up to the iteration time.
    The exposed times of a cause add up to this cause in the stage's breakdown.

    Args:
        stage: its number.
        is_slowest: whether the other stages wait for it.
        num_stages: number of pipeline stages.
        iteration_time_s: time of the iteration.
        breakdown: the stage's time by cause.
        rows: the operators.
        sources: the profile entries that they depend on, by name.
        limits: of a GPU.
    """

    json_fields: ClassVar = keys(
        """stage is_slowest num_stages iteration_time_s breakdown_s=breakdown operators
        entries=sources limits"""
    )

    stage: int
    is_slowest: bool
    num_stages: int
    iteration_time_s: float
    breakdown: Breakdown
    rows: tuple[Operator, ...]
    sources: dict[str, EntrySource]
    limits: GpuLimits

    def __repr__(self) -> str:
        time = format_seconds(self.iteration_time_s)
        return f"<Operators of stage {self.stage}: {len(self.rows)} in an iteration of {time}>"

    def of_cause(self, cause: str) -> tuple[Operator, ...]:
        return tuple(row for row in self.rows if row.cause == cause)

    def by_limit(self) -> list[tuple[Limit, tuple[Operator, ...]]]:
        """Return the operators by limit, the limit with the most exposed time first."""
        rows_of: dict[Limit, list[Operator]] = {}
        for row in self.rows:
            if row.bottleneck and row.exposed_s:
                rows_of.setdefault(row.bottleneck.limit, []).append(row)
        sums = {limit: math.fsum(row.exposed_s for row in rows) for limit, rows in rows_of.items()}
        return [
            (limit, tuple(rows_of[limit])) for limit in sorted(sums, key=lambda limit: -sums[limit])
        ]

    @property
    def slowed_s(self) -> float:
        """Time by which concurrent collectives slow down kernels."""
        kernels = self.of_cause("compute") + self.of_cause("recompute")
        slowed_s = math.fsum(row.total_s - row.alone_s for row in kernels)
        return slowed_s if slowed_s > 1e-9 * self.iteration_time_s else 0.0

    def records(self) -> Records:
        return [
            row.to_dict() | {"share": row.exposed_s / self.iteration_time_s} for row in self.rows
        ]

    @property
    def operators(self) -> Records:
        return self.records()


def slowest_stage(stages: Sequence[Breakdown]) -> int:
    """Return the first stage with the smallest bubble; other stages wait for it."""
    return min(range(len(stages)), key=lambda stage: stages[stage].bubble_s)


def operators_of(
    iteration: IterationTimeline, spans: Spans, stages: Sequence[Breakdown], stage: int
) -> StageOperators:
    """Return the operators of a stage; `stages` are the breakdowns of all stages."""
    seconds = iteration.seconds
    find = BottleneckFinder(seconds.machine.model)
    ops = stage_ops(iteration, spans, stage).items()
    rows = [_operator(key, of_key, iteration, find) for key, of_key in ops]
    rows.sort(key=lambda row: (-row.exposed_s, -row.total_s))
    bottlenecks = [row.bottleneck for row in rows if row.bottleneck]
    entries = {HOST_ISSUE, SLOWDOWN, *launch_entries(seconds)}.union(
        *(bottleneck.shares for bottleneck in bottlenecks)
    )
    return StageOperators(
        stage=stage,
        is_slowest=stage == slowest_stage(stages),
        num_stages=len(stages),
        iteration_time_s=iteration.time_s,
        breakdown=stages[stage],
        rows=tuple(rows),
        sources={name: source_of(name, seconds) for name in sorted(entries)},
        limits=_limits(find.model.profile, seconds.plan.scenario.precision.linear_product_type),
    )


def _operator(
    key: OpKey, seconds: OpSeconds, iteration: IterationTimeline, find: BottleneckFinder
) -> Operator:
    """Return the row of equal ops."""
    work, count, sent_bytes = key.work, seconds.count, iteration.seconds.plan.sent_bytes
    alone_s = count * key.alone_s(find.model, sent_bytes)
    is_exposed = seconds.exposed_s > 1e-13 * iteration.time_s  # else a rounding error
    bottleneck = find.of(lambda model: key.alone_s(model, sent_bytes))
    if isinstance(work, SynchronizationPart):
        alone_s = seconds.total_s
        if source_of(HOST_ISSUE, iteration.seconds).value:
            bottleneck = Bottleneck(Limit.HOST, HOST_ISSUE, {HOST_ISSUE: 1.0})
    main = source_of(bottleneck.entry, iteration.seconds) if bottleneck else None
    # Only matrix products count.
    flops, model_flops = getattr(work, "flops", 0), getattr(work, "model_flops", 0)
    return Operator(
        name=key.name,
        phase=key.phase,
        cause=key.field.removesuffix("_s"),
        shape=shape_of(work),
        count=count,
        flops=count * flops,
        model_flops=0 if key.phase is Phase.RECOMPUTE else count * model_flops,
        num_bytes=count * work_bytes(work, sent_bytes),
        alone_s=alone_s,
        total_s=seconds.total_s,
        exposed_s=seconds.exposed_s if is_exposed else 0.0,
        bottleneck=bottleneck,
        basis=_basis(work, find.model, main),
    )


def _limits(profile: HardwareProfile, product_type: str) -> GpuLimits:
    """Return the limits for bf16 and for the data type of the products of linear layers."""
    peaks = {name: profile.peak_flops(name) for name in dict.fromkeys(("bf16", product_type))}
    known = {name: peak for name, peak in peaks.items() if peak}
    return GpuLimits(profile.gpu.memory_bandwidth.value, known)


def source_of(name: str, seconds: IterationSeconds) -> EntrySource:
    """Return the source of a profile entry; the host's times may be the software stack's."""
    scenario, profile = seconds.plan.scenario, seconds.machine.model.profile
    if name == HOST_CALL:
        return _source_of_calls(seconds)
    if name == HOST_ISSUE and (issue_s := scenario.host_issue_s) is not None:
        stack = load_stack(scenario.software.stack, scenario.circumstances)
        issue_s /= profile.host_speed
        of_stack = stack.entry("host_issue")
        if of_stack and not scenario.software.overrides("host_issue"):
            return EntrySource(name, issue_s, f"{of_stack.source} (software stack {stack.name})")
        return EntrySource(name, issue_s, "software.host_issue of the scenario")
    entry = entry_of(profile, name)
    return EntrySource(name, entry.model_dump(mode="json")["value"], entry.source, entry.fitted_on)


def launch_entries(seconds: IterationSeconds) -> dict[str, float]:
    """Return the entries behind the wait for launches, each with its share of the host's time."""
    issue_s = source_of(HOST_ISSUE, seconds).value
    call_s = 0.0 if seconds.plan.scenario.facts.cuda_graphs else _source_of_calls(seconds).value
    entries = {HOST_ISSUE: issue_s, HOST_CALL: call_s}
    return {name: time_s / (issue_s + call_s) for name, time_s in entries.items() if time_s}


def _source_of_calls(seconds: IterationSeconds) -> EntrySource:
    """Return the time of a call of the framework on the machine's host."""
    scenario, speed = seconds.plan.scenario, seconds.machine.model.profile.call_speed
    software, call_s = scenario.software, scenario.facts.host_call / speed
    stack = load_stack(software.stack)
    source = "software.host_call of the scenario"
    entry = stack.entry("host_call")
    if entry and not software.overrides("host_call"):
        source = f"{entry.source} (software stack {stack.name})"
    return EntrySource(HOST_CALL, call_s, f"{source}; on a host of speed {speed:.3g}")


def _basis(work: OpWork, model: DurationModel, main: EntrySource | None) -> Basis:
    if not isinstance(work, TransferPart | SynchronizationPart) and model.is_extrapolated(work):
        return "extrapolated"
    return "fitted" if main and main.fitted_on else "published"


def work_bytes(work: OpWork, sent_bytes: float) -> float:
    """Return the bytes that work moves through HBM, or that a rank sends."""
    match work:
        case Gemm() | Elementwise() | FusedAttention():
            return work.moved_bytes
        case GroupedGemm():
            return work.batch * work.product.moved_bytes
        case Collective():
            return wire_bytes(work)
        case HostWork():
            return work.num_bytes
        case TransferPart():
            return work.num_states * sent_bytes
    return 0


def shape_of(work: OpWork) -> str:
    """Return the shape of an op's work as text."""
    match work:
        case Gemm() | GroupedGemm():
            product = work.product if isinstance(work, GroupedGemm) else work
            batch = f"{work.batch} × " if work.batch > 1 else ""
            dtype = "" if work.dtype == "bf16" else f" {work.dtype}"
            return f"{batch}{product.m}×{product.n}×{product.k}{dtype}"
        case FusedAttention():
            documents = sum(number for _, number in work.documents)
            packed = f" in {documents} documents" if documents else ""
            return f"{work.heads} × {work.seq_length}×{work.num_keys}×{work.head_size}{packed}"
        case Elementwise() | HostWork():
            size = work.num_bytes if isinstance(work, HostWork) else work.moved_bytes
            return format_bytes(size)
        case Collective():
            kind = work.kind.value.replace("_", "-")
            return f"{kind} {format_bytes(work.array_bytes)}, {work.group.num_ranks} ranks"
        case TransferPart():
            states = f" of {work.num_states} hidden states" if work.num_states > 1 else ""
            return f"message{states}" + ("" if work.levels_crossed else " inside a node")
    return "message"
