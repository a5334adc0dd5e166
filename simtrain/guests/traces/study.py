"""Compares the ranks of a trace with their simulated stages: losses, kinds of kernels, ops.

Kernels of a trace are mapped to simulated ops by name, else by kind and order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.values import dataclass, replace
from simtrain.engine import union_of
from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.errors import InputError, Location
from simtrain.guests.traces.kinds import (
    COPY,
    KIND_NAMED,
    KINDS,
    OPTIMIZER,
    OTHER,
    OTHER_COLLECTIVE,
    OUR_PREFIXES,
    TRANSFER,
    KernelKind,
    Role,
    kind_of_kernel,
)
from simtrain.guests.traces.ranks import RankTrace, TracedIteration, iterations_of, median_iteration
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.stage_kernels import stage_kernels
from simtrain.workload.ops import Op, Phase
from simtrain.workload.work import Collective, FusedAttention, Gemm, GroupedGemm, HostWork

MappedBy = Literal["name", "order", "kind", ""]
"""How kernels of a kind were mapped; "" if only one side has them."""
_REVERSED = {"dispatch": KIND_NAMED["combine"], "combine": KIND_NAMED["dispatch"]}
"""What the gradient of an exchange of tokens is."""


class KernelWork(NamedTuple):
    """What equal kernels do.

    Args:
        name: of the kernel or op.
        kind: its kind.
        group: ranks of its group; 0 if it has none, or the trace does not say it.
    """

    name: str
    kind: KernelKind
    group: int


@dataclass(frozen=True, slots=True, eq=False)
class RankKernels:
    """The kernels of a rank in an iteration, in order of start.

    Args:
        works: what different kernels do.
        work: [kernels], index into `works`.
        start_s, end_s: [kernels], from the begin of the iteration.
        launched_s: [kernels], when the host had launched it; NaN if nobody knows.
        op: [kernels], the launching op if it is of the same kind; -1 for another.
        iteration_s: time of the iteration.
    """

    works: Sequence[KernelWork]
    work: Ints
    start_s: Floats
    end_s: Floats
    launched_s: Floats
    op: Ints
    iteration_s: float

    @property
    def seconds(self) -> Floats:
        return self.end_s - self.start_s

    @property
    def kinds(self) -> list[KernelKind]:
        used = {work.kind.name for work in self.used_works}
        return [kind for kind in (*KINDS, OTHER) if kind.name in used]

    def of_kind(self, kind: KernelKind) -> Flags:
        return self._where(lambda work: work.kind is kind)

    def of_role(self, role: Role) -> Flags:
        return self._where(lambda work: work.kind.role is role)

    @property
    def is_head(self) -> Flags:
        """[kernels], false for kernels that follow others of the same op: one op, one head."""
        heads = np.ones(len(self.op), np.bool_)
        seen: set[int] = set()
        for place in np.flatnonzero(self.op >= 0).tolist():
            number = int(self.op[place])
            heads[place] = number not in seen
            seen.add(number)
        return heads

    @property
    def used_works(self) -> list[KernelWork]:
        return [self.works[number] for number in np.unique(self.work).tolist()]

    def _where(self, condition: Callable[[KernelWork], bool]) -> Flags:
        return np.array([condition(work) for work in self.works], np.bool_)[self.work]


def traced_kernels(trace: RankTrace, iteration: TracedIteration) -> RankKernels:
    """Return the kernels of an iteration in a trace."""
    kernels = [trace.kernels[place] for place in iteration.kernels]
    work_of = [KernelWork(kernel.name, kernel.kind, kernel.group) for kernel in kernels]
    works = dict.fromkeys(work_of)
    places = {work: place for place, work in enumerate(works)}
    times = np.array([kernel[4:7] for kernel in kernels], np.float64).reshape(-1, 3)
    start_s, end_s, launched_s = (times.T - iteration.start_us) * 1e-6
    return RankKernels(
        [*works],
        np.array([places[work] for work in work_of], np.int32),
        start_s,
        end_s,
        launched_s,
        np.array([kernel.op for kernel in kernels], np.int32),
        iteration.seconds,
    )


def simulated_kernels(result: Result, stage: int) -> RankKernels:
    """Return the kernels of a stage in a simulated iteration."""
    kernels = stage_kernels(result, stage)
    works = [*map(_work_of, kernels.names, kernels.ops)]
    different = [*dict.fromkeys(works)]
    places = {work: place for place, work in enumerate(different)}
    order = np.argsort(kernels.start_s, kind="stable")
    of_kernel = np.array([places[work] for work in works], np.int32)[kernels.kernel]
    return RankKernels(
        different,
        of_kernel[order],
        kernels.start_s[order],
        kernels.end_s[order],
        kernels.launched_s[order],
        np.full(len(order), -1, np.int32),
        result.timeline.makespan_s,
    )


def _without_groups(kernels: RankKernels, kinds: set[str]) -> RankKernels:
    works = [work._replace(group=0) if work.kind.name in kinds else work for work in kernels.works]
    return replace(kernels, works=works)


def _work_of(name: str, op: Op | None) -> KernelWork:
    if op is None:
        return KernelWork(name, TRANSFER, 0)
    kind, group = _kind_of(op), 0
    if isinstance(op.work, Collective) and kind.is_grouped:
        group = op.work.group.num_ranks
    return KernelWork(name, kind, group)


def _kind_of(op: Op) -> KernelKind:
    match op.work:
        case Collective():
            of_name = kind_of_kernel(op.name)
            if of_name.name in _REVERSED:
                is_gradient = op.phase is Phase.INPUT_GRADIENT
                return _REVERSED[of_name.name] if is_gradient else of_name
            return KIND_NAMED.get(op.work.kind.value, OTHER_COLLECTIVE)
        case Gemm() | GroupedGemm():
            return KIND_NAMED["products"]
        case FusedAttention():
            return KIND_NAMED["attention"]
        case HostWork() if op.phase is not Phase.OPTIMIZER:
            return COPY
    if op.stream_group is not None:
        return COPY
    return OPTIMIZER if op.phase is Phase.OPTIMIZER else kind_of_kernel(op.name)


@dataclass(frozen=True, slots=True, eq=False)
class KernelMapping:
    """The kernels of a trace beside those of a simulation.

    Args:
        traced: the kernels of the trace; those with the names of simulated ops do what these do.
        simulated: the kernels of the simulation.
        op: [kernels of the trace], the simulated work that each is, an index into
            `simulated.works`; -1 if only its kind is mapped, or nothing.
        basis: how each kind was mapped, by its name.
    """

    traced: RankKernels
    simulated: RankKernels
    op: Ints
    basis: dict[str, MappedBy]


def map_kernels(traced: RankKernels, simulated: RankKernels) -> KernelMapping:
    """Map the kernels of a trace.

    Traces of simtrain have the names of its ops. Of others, the n-th op of a kind is the n-th
    simulated op of that kind if both have equally many and the kind's order is that of the model
    (products, attention, norms, collectives); otherwise only the kind is mapped. Kernels
    that one op of PyTorch launched count as one.
    """
    traced, op = _named(traced, simulated)
    traced, simulated = _with_equal_groups(traced, simulated)
    basis: dict[str, MappedBy] = {}
    for kind in dict.fromkeys([*traced.kinds, *simulated.kinds]):
        of_trace = np.flatnonzero(traced.of_kind(kind))
        of_simulation = np.flatnonzero(simulated.of_kind(kind))
        if not (len(of_trace) and len(of_simulation)):
            basis[kind.name] = ""
        elif (op[of_trace] >= 0).all():
            basis[kind.name] = "name"
        elif kind is OTHER:
            basis[kind.name] = ""
        elif kind.is_ordered:
            basis[kind.name] = _in_order(traced, simulated, of_trace, of_simulation, op)
        else:
            basis[kind.name] = "kind"
    return KernelMapping(traced, simulated, op, basis)


def _named(traced: RankKernels, simulated: RankKernels) -> tuple[RankKernels, Ints]:
    """Return the kernels of a trace with what simulated ops of their names do, and these ops."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, work in enumerate(simulated.work.tolist()):
        places[simulated.works[work].name].append(place)
    names = [OUR_PREFIXES.sub("", work.name) for work in traced.works]
    op = np.full(len(traced.work), -1, np.int32)
    of_name: dict[str, list[int]] = defaultdict(list)
    for place, work in enumerate(traced.work.tolist()):
        if names[work] in places:
            of_name[names[work]].append(place)
    for name, of_trace in of_name.items():
        # Ops of one name may do different work forward and backward: their order tells which, or
        # the trace says what they do.
        of_ops = simulated.work[places[name]]
        if len(of_trace) == len(of_ops):
            op[of_trace] = of_ops
            continue
        different = dict.fromkeys(of_ops.tolist())
        for place in of_trace:
            _, *does = traced.works[traced.work[place]]
            alike = (number for number in different if [*simulated.works[number][1:]] == does)
            op[place] = next(alike, of_ops[0])
    works = [*traced.works, *simulated.works]
    work = np.where(op >= 0, len(traced.works) + op, traced.work).astype(np.int32)
    return replace(traced, works=works, work=work), op


def _with_equal_groups(
    traced: RankKernels, simulated: RankKernels
) -> tuple[RankKernels, RankKernels]:
    """Forget the groups of kinds of which the trace does not say them all."""
    unknown = {
        work.kind.name for work in traced.used_works if work.kind.is_grouped and not work.group
    }
    return _without_groups(traced, unknown), _without_groups(simulated, unknown)


def _in_order(
    traced: RankKernels,
    simulated: RankKernels,
    of_trace: Ints,
    of_simulation: Ints,
    op: Ints,
) -> MappedBy:
    is_head = traced.is_head[of_trace]
    if int(is_head.sum()) != len(of_simulation) or not is_head[0]:
        return "kind"
    # The kernels of an op need not follow one another; each is mapped as the op's first.
    place_of_head, chosen = np.cumsum(is_head) - 1, []
    head_of_op: dict[int, int] = {}
    for place, number in enumerate(traced.op[of_trace].tolist()):
        head = int(place_of_head[place])
        chosen.append(head_of_op.setdefault(number, head) if number >= 0 else head)
    op[of_trace] = simulated.work[of_simulation][chosen]
    return "order"


def kinds_of(mapping: KernelMapping) -> Sequence[KernelKind]:
    """Return the kinds of both sides."""
    used = {kind.name for side in (mapping.traced, mapping.simulated) for kind in side.kinds}
    return [kind for kind in (*KINDS, OTHER) if kind.name in used]


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
        group: ranks of the groups; 0 if its kernels have none, or the trace does not say it.
        mapped_by: "name" or "order" if each op is mapped, "kind" if only sums are, else "".
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
        rank: number of the rank; None if the trace does not say it.
        iteration, found_by, num_iterations: of the trace: the compared iteration, how iterations
            were told apart, and their number.
        ops: ops with mapped kernels, the largest difference first.
        unmapped: kernels that nothing simulated is like, the longest first.
    """

    json_fields: ClassVar = keys(
        """file rank stage iteration found_by num_iterations
        traced_s simulated_s traced simulated kinds ops unmapped"""
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
    kinds: tuple[KindDifference, ...]
    ops: tuple[OpDifference, ...]
    unmapped: tuple[UnmappedKernel, ...]

    @property
    def unmapped_s(self) -> float:
        return math.fsum(kernel.sum.total_s for kernel in self.unmapped)


@dataclass(frozen=True, slots=True)
class TraceComparison(PlainData):
    """The ranks of traces beside a simulated iteration, in the order of stages.

    If `is_by_rank` their numbers say their stages; otherwise the order of the files does.
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
