"""Sets of ops that layers could save: the fastest for each amount of memory.

For each set, the work that runs again and the bytes that stay follow from the tape of a layer
(`workload.saved_ops`). All sets are compared at once, as arrays over the subsets of the ops, with
the time of each op alone. The sets that no other one beats in both are candidates; the engine and
the replay of memory then decide between them. Feng and Huang 2021 and Checkmate (Jain et al. 2020)
solve the same problem with dynamic or integer programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simtrain.iteration.plan import Plan
from simtrain.scenario.recompute_section import OP_KINDS
from simtrain.workload.ops import Tensor
from simtrain.workload.saved_ops import LayerTensors, layer_tensors
from simtrain.workload.tape import record
from simtrain.workload.work import Work

_MOST_OPS = 16
"""Ops that a set may contain or not; all of 2^16 sets are compared in a fraction of a second."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OpSet:
    """A set of ops that layers save.

    Args:
        ops: their names, as in recompute.saved_ops.
        saved_bytes: tensors that all layers of the model keep on a rank for a microbatch.
        again_s: time of the ops that all of them run again, each alone.
    """

    ops: tuple[str, ...]
    saved_bytes: float
    again_s: float


def best_op_sets(plan: Plan, seconds: Callable[[Work], float]) -> tuple[OpSet, ...]:
    """Return the sets that are fastest for their memory, the fastest (and largest) first.

    Ops of little memory are in every set. Layers of different kinds share the set: an op with a
    name that both have is saved by both or by neither.

    Args:
        plan: of a scenario whose layers have the same ops under any recompute.
        seconds: time of an op's work alone.
    """
    batch = plan.microbatch
    numbers = Counter({block: number for block, number in plan.model.runs if block.is_unit})
    layers = {layer_tensors(record(block, batch)): number for block, number in numbers.items()}
    weights: Counter[str] = Counter()
    for tensors, number in layers.items():
        for node, name in _names(tensors).items():
            weights[name] += number * _made_bytes(tensors, node)
    variable = [name for name, _ in weights.most_common(_MOST_OPS) if weights[name]]
    always = frozenset(weights) - {*variable}
    columns = np.arange(1 << len(variable))
    in_set = {name: (columns >> place & 1).astype(bool) for place, name in enumerate(variable)}
    in_set |= {name: np.ones(len(columns), bool) for name in always}
    saved_bytes, again_s = np.zeros((2, len(columns)))
    holds_unread = not batch.kernels.partitions_recompute
    for tensors, number in layers.items():
        layer_bytes, layer_s = _layer(tensors, in_set, seconds, holds_unread=holds_unread)
        saved_bytes += number * layer_bytes
        again_s += number * layer_s
    sets = []
    least = np.inf
    for column in np.lexsort((saved_bytes, again_s)):
        if saved_bytes[column] < least:
            least = saved_bytes[column]
            ops = [name for name in variable if in_set[name][column]]
            effective = _with_effect(layers, {*ops, *always})
            sets.append(OpSet(effective, float(least), float(again_s[column])))
    return tuple(sets)


def _with_effect(layers: Iterable[LayerTensors], ops: set[str]) -> tuple[str, ...]:
    """Return the ops of a set without those of which no layer saves an output, sorted."""
    names = set()
    for tensors in layers:
        named = _names(tensors)
        kept = tensors.kept_nodes(tuple(ops))
        saved = {*tensors.needed(kept)[1]}
        for number in reversed(range(len(tensors.nodes))):
            made = {tensor for tensor, maker in tensors.makers.items() if maker == number}
            if not made & saved:
                continue
            if number in named:
                names.add(named[number])
            else:  # a view of saved tensors
                saved |= {*tensors.nodes[number].inputs}
    return (*sorted(names & ops),)


def _names(tensors: LayerTensors) -> dict[int, str]:
    """Return the name of an op of each node that has ops; that of its product, if it has one."""
    named = {}
    for number, node in enumerate(tensors.nodes):
        if names := sorted(tensors.names[number] - {*OP_KINDS}):
            named[number] = node.name if node.name in names else names[0]
    return named


def _made_bytes(tensors: LayerTensors, node: int) -> int:
    """Bytes of the tensors that a node makes and that the backward pass or another node reads."""
    return sum(tensor.num_bytes for tensor in _made(tensors, node))


def _made(tensors: LayerTensors, node: int) -> list[Tensor]:
    used = {x for other in tensors.nodes for x in other.inputs} | {*tensors.read}
    return [tensor for tensor, maker in tensors.makers.items() if maker == node and tensor in used]


def _layer(
    tensors: LayerTensors,
    in_set: dict[str, Flags],
    seconds: Callable[[Work], float],
    *,
    holds_unread: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return [sets], bytes that a layer keeps and seconds of what it runs again, for each set."""
    shape = next(iter(in_set.values())).shape
    names, every = _names(tensors), np.ones(shape, bool)
    kept: list[Flags] = []
    for number, node in enumerate(tensors.nodes):
        if number in names:
            kept.append(in_set[names[number]])
            continue
        makers = [tensors.makers.get(x) for x in node.inputs]
        flags = [kept[maker] for maker in makers if maker is not None]
        kept.append(np.logical_and.reduce([every, *flags]))
    wanted = {tensor: every if tensor in tensors.read else ~every for tensor in tensors.makers}
    num_bytes, again_s = np.zeros((2, *shape))
    for number in reversed(range(len(tensors.nodes))):
        node = tensors.nodes[number]
        made = [tensor for tensor, maker in tensors.makers.items() if maker == number]
        is_wanted = np.logical_or.reduce([~every, *(wanted[tensor] for tensor in made)])
        runs_again = is_wanted & ~kept[number]
        again_s += runs_again * sum(seconds(op.work) for op in tensors.ops[number])
        for x in node.inputs:
            if x in wanted:
                wanted[x] = wanted[x] | runs_again
        for tensor in made:
            is_held = holds_unread and bool(tensors.ops[number]) and tensor in node.outputs
            num_bytes += tensor.num_bytes * (kept[number] & (wanted[tensor] | is_held))
    return num_bytes, again_s
