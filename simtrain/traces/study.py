"""Compares the ranks of a trace with their simulated stages."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.errors import InputError, Location
from simtrain.iteration.report.result import Result
from simtrain.traces.iterations import iterations_of, median_iteration
from simtrain.traces.kernels import (
    RankKernels,
    simulated_kernels,
    traced_kernels,
)
from simtrain.traces.kinds import KernelKind, Role
from simtrain.traces.losses import (
    Losses,
    StreamOverlap,
    exposed_of,
    losses_of,
    overlap_of,
)
from simtrain.traces.mapping import Mapping, kinds_of, map_kernels
from simtrain.traces.ranks import RankTrace


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
        """Time of the trace beyond the simulation's."""
        return self.traced.total_s - self.simulated.total_s


@dataclass(frozen=True, slots=True)
class OpDifference(PlainData):
    """A simulated op, and the kernels that were mapped to it.

    Args:
        op: its name.
        kind: what people read of its kind.
        traced, simulated: the sums.
    """

    json_fields: ClassVar = keys("op kind traced simulated difference_s")

    op: str
    kind: str
    traced: KernelSum
    simulated: KernelSum

    @property
    def difference_s(self) -> float:
        """Time of the trace beyond the simulation's."""
        return self.traced.total_s - self.simulated.total_s


@dataclass(frozen=True, slots=True)
class UnmappedKernel:
    """Kernels of a name that is of no kind, or of a kind that the simulation does not have.

    Args:
        name: their name.
        kind: what people read of their kind.
        sum: their number and time.
    """

    name: str
    kind: str
    sum: KernelSum


@dataclass(frozen=True, slots=True)
class StreamUse:
    """A stream of the device.

    Args:
        stream: its name.
        kernels: all its kernels.
        compute_s, communication_s, copies_s: sums of times of its kernels.
    """

    stream: str
    kernels: KernelSum
    compute_s: float
    communication_s: float
    copies_s: float


@dataclass(frozen=True, slots=True)
class RankComparison(PlainData):
    """A rank of a trace beside its simulated stage.

    Args:
        file: the trace.
        rank: number of the rank; None if the trace does not say it.
        stage: the simulated stage.
        simulated_pass: the pass that is compared; "" for the whole iteration.
        iteration, found_by, num_iterations: of the trace: the compared iteration, how iterations
            were told apart, and their number.
        traced_s, simulated_s: times of the iteration.
        traced, simulated: their losses.
        traced_overlap, simulated_overlap: their overlap.
        kinds: by kind, in the order of kinds.
        ops: ops with mapped kernels, the largest difference first.
        unmapped: kernels that nothing simulated is like, the longest first.
        streams: streams of the trace.
        mapping: the kernels of both sides.
    """

    json_fields: ClassVar = keys(
        """file rank stage simulated_pass iteration found_by num_iterations
        traced_s simulated_s traced simulated traced_overlap simulated_overlap
        kinds ops unmapped streams"""
    )

    file: str
    rank: int | None
    stage: int
    simulated_pass: str
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
    streams: tuple[StreamUse, ...]
    mapping: Mapping

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
    result: Result, traces: Sequence[RankTrace], name: str = "", pass_name: str = ""
) -> TraceComparison:
    """Compare ranks of a trace with a simulated iteration.

    Args:
        result: the iteration.
        traces: ranks. If a trace has as many ranks as the scenario, its number says its stage;
            otherwise the first file is the first stage, and so on.
        name: what the user calls the scenario.
        pass_name: for traces of a part of an iteration, the simulated pass to compare, such as
            "0F0"; "" for the whole iteration.

    Raises:
        InputError: E118, a stage has no pass of this name.
        InputError: E728, there are more files than stages and their numbers say nothing.
    """
    num_ranks = result.scenario.num_gpus
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
    stages = [
        _stage_of(result, trace.rank or 0) if is_by_rank else place
        for place, trace in enumerate(traces)
    ]
    ranks = [
        _compared(result, trace, stage, pass_name)
        for trace, stage in zip(traces, stages, strict=True)
    ]
    ranks.sort(key=lambda rank: (rank.stage, rank.rank or 0))
    return TraceComparison(name or result.scenario.name or "scenario", tuple(ranks), is_by_rank)


def _stage_of(result: Result, rank: int) -> int:
    mesh = result.plan.mesh
    return rank // mesh.stride("pp") % mesh.pp


def _compared(result: Result, trace: RankTrace, stage: int, pass_name: str) -> RankComparison:
    found_by, iterations = iterations_of(trace)
    iteration = iterations[median_iteration(iterations)]
    simulated = simulated_kernels(result, stage, pass_name)
    mapping = map_kernels(traced_kernels(trace, iteration), simulated)
    kinds = tuple(_by_kind(mapping))
    return RankComparison(
        str(trace.file),
        trace.rank,
        stage,
        pass_name,
        iteration.name,
        found_by,
        len(iterations),
        iteration.seconds,
        simulated.iteration_s,
        losses_of(mapping.traced),
        losses_of(mapping.simulated),
        overlap_of(mapping.traced),
        overlap_of(mapping.simulated),
        kinds,
        tuple(_by_op(mapping)),
        tuple(_unmapped(mapping)),
        tuple(_by_stream(mapping.traced)),
        mapping,
    )


def _by_kind(mapping: Mapping) -> Iterator[KindDifference]:
    for kind in kinds_of(mapping):
        for group in _groups(mapping, kind):
            sums = (_sum_of_kind(side, kind, group) for side in (mapping.traced, mapping.simulated))
            basis = mapping.basis.get(kind.name, "")
            yield KindDifference(kind.name, kind.label, group, basis, *sums)


def _groups(mapping: Mapping, kind: KernelKind) -> list[int]:
    """Return the sizes of groups that kernels of a kind have, on either side."""
    return sorted(
        {
            work.group
            for side in (mapping.traced, mapping.simulated)
            for work in side.used_works
            if work.kind is kind
        }
    )


def _sum_of_kind(kernels: RankKernels, kind: KernelKind, group: int) -> KernelSum:
    is_chosen = [work.kind is kind and work.group == group for work in kernels.works]
    chosen = np.array(is_chosen, np.bool_)[kernels.work]
    exposed_s = exposed_of(kernels, chosen) if kind.role is Role.COMMUNICATION else None
    count = int((chosen & kernels.is_head).sum())
    return KernelSum(count, float(kernels.seconds[chosen].sum()), exposed_s)


def _by_op(mapping: Mapping) -> list[OpDifference]:
    """Return the ops of kinds of which each kernel is mapped."""
    simulated, size = mapping.simulated, len(mapping.simulated.works)
    is_mapped = mapping.op >= 0
    op = mapping.op[is_mapped]
    total_s = np.bincount(op, mapping.traced.seconds[is_mapped], size)
    counts = np.bincount(op, mapping.traced.is_head[is_mapped], size).astype(int)
    expected_s = np.bincount(simulated.work, simulated.seconds, size)
    expected = np.bincount(simulated.work, minlength=size)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0, 0.0])
    for place, work in enumerate(simulated.works):
        if mapping.basis.get(work.kind.name) in ("name", "order"):
            values = counts[place], total_s[place], expected[place], expected_s[place]
            key = work.name, work.kind.label
            sums[key] = [before + more for before, more in zip(sums[key], values, strict=True)]
    rows = [
        OpDifference(
            name,
            label,
            KernelSum(int(row[0]), float(row[1])),
            KernelSum(int(row[2]), float(row[3])),
        )
        for (name, label), row in sums.items()
    ]
    return sorted(rows, key=lambda row: -abs(row.difference_s))


def _unmapped(mapping: Mapping) -> list[UnmappedKernel]:
    traced = mapping.traced
    total_s = np.bincount(traced.work, traced.seconds, len(traced.works))
    counts = np.bincount(traced.work, minlength=len(traced.works))
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for place, work in enumerate(traced.works):
        if counts[place] and not mapping.basis[work.kind.name]:
            before = sums[work.name, work.kind.label]
            sums[work.name, work.kind.label] = [
                before[0] + counts[place],
                before[1] + total_s[place],
            ]
    rows = [
        UnmappedKernel(name, label, KernelSum(int(count), float(seconds)))
        for (name, label), (count, seconds) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row.sum.total_s)


def _by_stream(kernels: RankKernels) -> Iterator[StreamUse]:
    for place, stream in enumerate(kernels.streams):
        chosen = kernels.stream == place
        seconds = kernels.seconds
        by_role = (float(seconds[chosen & kernels.of_role(role)].sum()) for role in Role)
        yield StreamUse(
            stream, KernelSum(int(chosen.sum()), float(seconds[chosen].sum())), *by_role
        )
