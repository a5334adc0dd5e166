"""Compares the ranks of a trace with their simulated stages: losses, kinds of kernels, ops."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine import union_of
from simtrain.engine.compiled import Flags, Floats
from simtrain.errors import InputError, Location
from simtrain.iteration.report.result import Result
from simtrain.traces.kernels import (
    KernelMapping,
    RankKernels,
    kinds_of,
    map_kernels,
    simulated_kernels,
    traced_kernels,
)
from simtrain.traces.kinds import Role
from simtrain.traces.ranks import RankTrace, iterations_of, median_iteration

_LONGEST_START_S = 5e-6
"""A device starts a kernel that waits in its queue within this time; longer it waits for others."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The time of an iteration on a rank by cause; the causes add up to it.

    Args:
        compute_s: kernels that compute, alone or beside others.
        exposed_s: communication that no computing kernel hides, by kind.
        copies_s: copies of memory beside which nothing runs.
        host_gap_s: nothing runs and the host had not launched the next kernel.
        start_gap_s: nothing runs for at most 5 µs, and the next kernel was launched.
        bubble_s: nothing runs, though the next kernel was launched: it waits for others.
    """

    compute_s: float
    exposed_s: Mapping[str, float]
    copies_s: float
    host_gap_s: float
    start_gap_s: float
    bubble_s: float

    @property
    def total_s(self) -> float:
        idle = self.host_gap_s, self.start_gap_s, self.bubble_s
        return math.fsum([self.compute_s, *self.exposed_s.values(), self.copies_s, *idle])


@dataclass(frozen=True, slots=True)
class StreamOverlap:
    """How much communication runs beside compute.

    Args:
        compute_s: time in which a kernel computes.
        communication_s: time in which a rank communicates.
        both_s: time in which it does both.
    """

    compute_s: float
    communication_s: float
    both_s: float

    @property
    def hidden_share(self) -> float:
        """Share of the communication's time in which a kernel computes."""
        return self.both_s / self.communication_s if self.communication_s else 0.0


def losses_of(kernels: RankKernels) -> Losses:
    """Divide the time of an iteration."""
    busy = _union(kernels, kernels.of_role(Role.COMPUTE))
    compute_s, exposed_s = _length(busy), {}
    for kind in kernels.kinds:
        if kind.role is Role.COMMUNICATION:
            # Where several kinds are exposed, the time counts to the first of them.
            wider = _joined(busy, _union(kernels, kernels.of_kind(kind)))
            exposed_s[kind.name] = _length(wider) - _length(busy)
            busy = wider
    with_copies = _joined(busy, _union(kernels, kernels.of_role(Role.COPY)))
    copies_s = _length(with_copies) - _length(busy)
    return Losses(compute_s, exposed_s, copies_s, *_idle_s(kernels, with_copies))


def overlap_of(kernels: RankKernels) -> StreamOverlap:
    """Return how much communication runs beside compute."""
    compute = _union(kernels, kernels.of_role(Role.COMPUTE))
    communication = _union(kernels, kernels.of_role(Role.COMMUNICATION))
    both_s = _length(compute) + _length(communication) - _length(_joined(compute, communication))
    return StreamOverlap(_length(compute), _length(communication), max(both_s, 0.0))


def exposed_of(kernels: RankKernels, chosen: Flags) -> float:
    """Return the time of some kernels in which no kernel computes."""
    compute = _union(kernels, kernels.of_role(Role.COMPUTE))
    return _length(_joined(compute, _union(kernels, chosen))) - _length(compute)


def _idle_s(kernels: RankKernels, busy: Floats) -> tuple[float, float, float]:
    """Return the seconds of host gaps, of starts and of the bubble.

    Args:
        kernels: the kernels of the iteration.
        busy: sorted, disjoint intervals in which something runs.
    """
    host_s: list[float] = []
    start_s: list[float] = []
    bubble_s: list[float] = []
    # After the last kernel a host that launches all of them is behind; else others are waited for.
    is_by_host = not np.isnan(kernels.launched_s).any()
    launched_s = np.append(kernels.launched_s, math.inf if is_by_host else math.nan)
    begins = np.append(0.0, busy[:, 1])
    ends = np.append(busy[:, 0], kernels.iteration_s)
    next_launched_s = launched_s[np.searchsorted(kernels.start_s, ends, side="left")]
    idle = zip(begins.tolist(), ends.tolist(), next_launched_s.tolist(), strict=True)
    for begin, end, moment_s in idle:
        if end <= begin:
            continue
        if moment_s > begin:  # not if it is NaN
            host_s.append(end - begin)
        else:
            (start_s if end - begin <= _LONGEST_START_S else bubble_s).append(end - begin)
    return math.fsum(host_s), math.fsum(start_s), math.fsum(bubble_s)


def _union(kernels: RankKernels, chosen: Flags) -> Floats:
    """Return when any of some kernels runs within the iteration."""
    limits_s = 0.0, kernels.iteration_s
    times = kernels.start_s[chosen].clip(*limits_s), kernels.end_s[chosen].clip(*limits_s)
    return union_of(np.stack(times, axis=1))


def _joined(intervals: Floats, others: Floats) -> Floats:
    return union_of(np.concatenate([intervals, others]))


def _length(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


@dataclass(frozen=True, slots=True)
class KernelSum:
    """Kernels of a kind, of an op or of a name.

    Args:
        count: number of kernels; those that one op of PyTorch launched count as one.
        total_s: sum of their times.
        exposed_s: time in which no kernel computes beside them; None for kernels that compute.
    """

    count: int
    total_s: float
    exposed_s: float | None = None


@dataclass(frozen=True, slots=True)
class KindDifference(PlainData):
    """A kind of kernels in the trace and in the simulation.

    Args:
        kind, label: its name, and what people read.
        group: ranks of the groups; 0 if its kernels have none, or the trace does not say it.
        mapped_by: "name" or "order" if each op is mapped, "kind" if only sums are, else "".
        traced, simulated: the sums.
    """

    json_fields: ClassVar = keys("kind label group mapped_by traced simulated difference_s")

    kind: str
    label: str
    group: int
    mapped_by: str
    traced: KernelSum
    simulated: KernelSum

    @property
    def difference_s(self) -> float:
        return self.traced.total_s - self.simulated.total_s


@dataclass(frozen=True, slots=True)
class OpDifference(PlainData):
    """A simulated op by its name and the label of its kind, and the kernels mapped to it."""

    json_fields: ClassVar = keys("op kind traced simulated difference_s")

    op: str
    kind: str
    traced: KernelSum
    simulated: KernelSum

    @property
    def difference_s(self) -> float:
        return self.traced.total_s - self.simulated.total_s


@dataclass(frozen=True, slots=True)
class UnmappedKernel:
    """Kernels of a name that is of no kind, or of a kind that the simulation does not have."""

    name: str
    kind: str
    sum: KernelSum


@dataclass(frozen=True, slots=True)
class RankComparison(PlainData):
    """A rank of a trace beside its simulated stage.

    Args:
        file: the trace.
        rank: number of the rank; None if the trace does not say it.
        stage: the simulated stage.
        iteration, found_by, num_iterations: of the trace: the compared iteration, how iterations
            were told apart, and their number.
        traced_s, simulated_s: times of the iteration.
        traced, simulated: their losses.
        traced_overlap, simulated_overlap: their overlap.
        kinds: by kind, in the order of kinds.
        ops: ops with mapped kernels, the largest difference first.
        unmapped: kernels that nothing simulated is like, the longest first.
    """

    json_fields: ClassVar = keys(
        """file rank stage iteration found_by num_iterations
        traced_s simulated_s traced simulated traced_overlap simulated_overlap kinds ops unmapped"""
    )

    file: str
    rank: int | None
    stage: int
    iteration: str
    found_by: str
    num_iterations: int
    traced_s: float
    simulated_s: float
    traced: Losses
    simulated: Losses
    traced_overlap: StreamOverlap
    simulated_overlap: StreamOverlap
    kinds: tuple[KindDifference, ...]
    ops: tuple[OpDifference, ...]
    unmapped: tuple[UnmappedKernel, ...]

    @property
    def unmapped_s(self) -> float:
        """Sum of the times of unmapped kernels."""
        return math.fsum(kernel.sum.total_s for kernel in self.unmapped)


@dataclass(frozen=True, slots=True)
class TraceComparison(PlainData):
    """The ranks of traces beside a simulated iteration.

    Args:
        scenario: its name.
        ranks: the ranks, in the order of stages.
        is_by_rank: their numbers say their stages; otherwise the order of the files does.
    """

    json_fields: ClassVar = keys("scenario is_by_rank ranks")

    scenario: str
    ranks: tuple[RankComparison, ...]
    is_by_rank: bool


def compare_with_traces(
    result: Result, traces: Sequence[RankTrace], name: str = ""
) -> TraceComparison:
    """Compare ranks of a trace with a simulated iteration.

    Args:
        result: the iteration.
        traces: ranks. If a trace has as many ranks as the scenario, its number says its stage;
            otherwise the first file is the first stage, and so on.
        name: what the user calls the scenario.

    Raises:
        InputError: E728, there are more files than stages and their numbers say nothing.
    """
    num_ranks, mesh = result.scenario.num_gpus, result.plan.mesh
    is_by_rank = all(
        trace.world_size == num_ranks and trace.rank is not None and trace.rank < num_ranks
        for trace in traces
    )
    if not is_by_rank and len(traces) > result.num_stages:
        excess = traces[result.num_stages]
        message = f"{len(traces)} ranks are beside {result.num_stages} simulated stages"
        reason = f"the traces do not say that they are of {num_ranks} ranks, as the scenario is"
        fix = "name a trace for each stage, in the order of stages, or change the scenario"
        raise InputError.of("E728", message, Location(str(excess.file)), fix, reason)
    ranks = []
    for place, trace in enumerate(traces):
        stage = (trace.rank or 0) // mesh.stride("pp") % mesh.pp if is_by_rank else place
        ranks.append(_compared(result, trace, stage))
    ranks.sort(key=lambda rank: (rank.stage, rank.rank or 0))
    return TraceComparison(name or result.scenario.name or "scenario", tuple(ranks), is_by_rank)


def _compared(result: Result, trace: RankTrace, stage: int) -> RankComparison:
    found_by, iterations = iterations_of(trace)
    iteration = median_iteration(iterations)
    simulated = simulated_kernels(result, stage)
    mapping = map_kernels(traced_kernels(trace, iteration), simulated)
    return RankComparison(
        file=str(trace.file),
        rank=trace.rank,
        stage=stage,
        iteration=iteration.name,
        found_by=found_by,
        num_iterations=len(iterations),
        traced_s=iteration.seconds,
        simulated_s=simulated.iteration_s,
        traced=losses_of(mapping.traced),
        simulated=losses_of(mapping.simulated),
        traced_overlap=overlap_of(mapping.traced),
        simulated_overlap=overlap_of(mapping.simulated),
        kinds=tuple(_by_kind(mapping)),
        ops=tuple(_by_op(mapping)),
        unmapped=tuple(_unmapped(mapping)),
    )


def _by_kind(mapping: KernelMapping) -> Iterator[KindDifference]:
    sides = mapping.traced, mapping.simulated
    for kind in kinds_of(mapping):
        used = (work for side in sides for work in side.used_works)
        for group in sorted({work.group for work in used if work.kind is kind}):
            sums = []
            for side in sides:
                chosen = [work.kind is kind and work.group == group for work in side.works]
                is_communication = kind.role is Role.COMMUNICATION
                sums.append(_sum(side, np.array(chosen, np.bool_)[side.work], is_communication))
            basis = mapping.basis.get(kind.name, "")
            yield KindDifference(kind.name, kind.label, group, basis, *sums)


def _sum(kernels: RankKernels, chosen: Flags, is_communication: bool) -> KernelSum:
    exposed_s = exposed_of(kernels, chosen) if is_communication else None
    count = int((chosen & kernels.is_head).sum())
    return KernelSum(count, float(kernels.seconds[chosen].sum()), exposed_s)


def _by_op(mapping: KernelMapping) -> list[OpDifference]:
    simulated, size = mapping.simulated, len(mapping.simulated.works)
    is_mapped = mapping.op >= 0
    op = mapping.op[is_mapped]
    columns = np.stack(
        [
            np.bincount(op, mapping.traced.is_head[is_mapped], size),
            np.bincount(op, mapping.traced.seconds[is_mapped], size),
            np.bincount(simulated.work, minlength=size),
            np.bincount(simulated.work, simulated.seconds, size),
        ],
        axis=1,
    )
    sums: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(4))
    for work, values in zip(simulated.works, columns, strict=True):
        if mapping.basis.get(work.kind.name) in ("name", "order"):
            sums[work.name, work.kind.label] += values
    rows = [
        OpDifference(
            *named, KernelSum(int(row[0]), float(row[1])), KernelSum(int(row[2]), float(row[3]))
        )
        for named, row in sums.items()
    ]
    return sorted(rows, key=lambda row: -abs(row.difference_s))


def _unmapped(mapping: KernelMapping) -> list[UnmappedKernel]:
    traced, size = mapping.traced, len(mapping.traced.works)
    counts = np.bincount(traced.work, minlength=size).tolist()
    total_s = np.bincount(traced.work, traced.seconds, size).tolist()
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for work, count, seconds in zip(traced.works, counts, total_s, strict=True):
        if count and not mapping.basis[work.kind.name]:
            row = sums[work.name, work.kind.label]
            row[0] += count
            row[1] += seconds
    rows = [
        UnmappedKernel(*named, KernelSum(int(count), seconds))
        for named, (count, seconds) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row.sum.total_s)
