"""The kernels of a rank in an iteration, of a trace and of a simulation, and which are the same.

Kernels of a trace are mapped to simulated ops by name, else by kind and order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.stage_kernels import stage_kernels
from simtrain.traces.kinds import (
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
from simtrain.traces.ranks import RankTrace, TracedIteration
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
    """Map the kernels of a kind one after another if both sides have equally many."""
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
