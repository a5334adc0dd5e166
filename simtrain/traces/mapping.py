"""Maps the kernels of a trace to the simulated ops: by name, else by kind and order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.traces.kernels import RankKernels, without_groups
from simtrain.traces.kinds import KINDS, OTHER, OUR_PREFIXES, KernelKind

Basis = Literal["name", "order", "kind", ""]
"""How kernels of a kind were mapped; "" if only one side has them."""


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
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
    basis: dict[str, Basis]


def map_kernels(traced: RankKernels, simulated: RankKernels) -> Mapping:
    """Map the kernels of a trace.

    Traces of simtrain have the names of its ops. Of others, the n-th op of a kind is the n-th
    simulated op of that kind if both have equally many and the kind's order is that of the model
    (products, attention, norms, collectives); otherwise only the kind is mapped. Kernels
    that one op of PyTorch launched count as one.
    """
    traced, op = _named(traced, simulated)
    traced, simulated = _with_equal_groups(traced, simulated)
    basis: dict[str, Basis] = {}
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
    return Mapping(traced, simulated, op, basis)


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
    return without_groups(traced, unknown), without_groups(simulated, unknown)


def _in_order(
    traced: RankKernels,
    simulated: RankKernels,
    of_trace: Ints,
    of_simulation: Ints,
    op: Ints,
) -> Basis:
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


def kinds_of(mapping: Mapping) -> Sequence[KernelKind]:
    """Return the kinds of both sides."""
    used = {kind.name for side in (mapping.traced, mapping.simulated) for kind in side.kinds}
    return [kind for kind in (*KINDS, OTHER) if kind.name in used]
