"""Recompute by op: what a layer saves, and what it computes again, if it saves some ops' outputs.

The layer saves its input and the outputs of some ops. Before its backward pass, it computes again
every other tensor that the backward pass reads, and what these need. Source: PyTorch's
`create_selective_checkpoint_contexts` (torch/utils/checkpoint.py), which stops recomputing at the
last tensor that is read.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simtrain.errors import InputError
from simtrain.scenario.recompute_section import OP_KINDS
from simtrain.workload.issue import IssueOrder, OverlapPolicy
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.regions import Subgraph
from simtrain.workload.tape import Node, Recording, Region
from simtrain.workload.work import Collective, CollectiveKind, FusedAttention, Gemm, GroupedGemm

_WHOLE_LAYER = Region("whole layer")
_COLLECTIVES = {
    CollectiveKind.ALL_GATHER: "all_gathers",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatters",
    CollectiveKind.ALL_REDUCE: "all_reduces",
    CollectiveKind.ALL_TO_ALL: "all_to_alls",
}


@dataclass(frozen=True, slots=True, eq=False)
class LayerTensors:
    """The tensors of a recorded layer by the node that makes them.

    Args:
        nodes: in order.
        ops: for each node, the ops of its forward pass; a view has none.
        names: for each node, the names and kinds of its ops.
        makers: for each tensor but the layer's input, the number of its node. Tensors that no node
            outputs, such as masks of dropout, belong to the first node whose ops save them.
        read: tensors that the backward pass reads.
    """

    nodes: tuple[Node, ...]
    ops: tuple[tuple[Op, ...], ...]
    names: tuple[frozenset[str], ...]
    makers: dict[Tensor, int]
    read: dict[Tensor, None]

    def kept_nodes(self, saved_ops: tuple[str, ...]) -> frozenset[int]:
        """Return the numbers of the nodes that a policy saves, views of saved tensors included."""
        kept = {number for number, names in enumerate(self.names) if names & {*saved_ops}}
        for number, node in enumerate(self.nodes):
            makers = [self.makers.get(x, -1) for x in node.inputs]
            if not self.ops[number] and all(maker < 0 or maker in kept for maker in makers):
                kept.add(number)
        return frozenset(kept)

    def needed(self, kept: frozenset[int]) -> tuple[tuple[int, ...], dict[Tensor, None]]:
        """Return the nodes that run again if others are kept, and the tensors that must be saved.

        The tensors, in order, are those of kept nodes which the backward pass or a node that runs
        again reads.
        """
        wanted = dict(self.read)
        again = set()
        for number in reversed(range(len(self.nodes))):
            makes = any(self.makers.get(tensor) == number for tensor in wanted)
            if makes and number not in kept:
                again.add(number)
                wanted |= dict.fromkeys(self.nodes[number].inputs)
        saved = dict.fromkeys(tensor for tensor in wanted if self.makers.get(tensor) in kept)
        return tuple(sorted(again)), saved

    def unread(self, kept: frozenset[int], saved: dict[Tensor, None]) -> Iterator[Tensor]:
        """Yield outputs of kept nodes that nothing reads, each storage once."""
        storages = {tensor.storage for tensor in saved}
        of_nodes = zip(self.nodes, self.ops, strict=True)
        viewed = {x for node, ops in of_nodes if not ops for x in node.inputs}
        for number in sorted(kept):
            for tensor in self.nodes[number].outputs:
                is_held = tensor.storage in storages or tensor in viewed
                if not is_held and self.ops[number]:
                    yield tensor


@functools.lru_cache(maxsize=1024)
def layer_tensors(recording: Recording) -> LayerTensors:
    """Return the tensors of a recorded layer by node."""
    names, makers, read = [], dict[Tensor, int](), dict[Tensor, None]()
    ops_of_nodes: list[tuple[Op, ...]] = []
    num_products = 0
    for number, node in enumerate(recording.nodes):
        order = IssueOrder(OverlapPolicy(frozenset()))
        node.forward(order)
        ops = order.segment().ops
        makers |= dict.fromkeys(node.outputs, number)
        read |= dict.fromkeys(tensor for op in ops for tensor in op.saves)
        ops_of_nodes.append(ops)
        words: set[str] = set()
        for op in ops:
            words |= {op.name, _kind(op)}
            if isinstance(op.work, Gemm | GroupedGemm):
                words |= {"alternate_products"} if num_products % 2 == 0 else set()
                num_products += 1
        names.append(frozenset(words - {""}))
        for op in ops:
            for tensor in op.saves:
                if tensor is not recording.block_input:
                    makers.setdefault(tensor, number)
    return LayerTensors(recording.nodes, tuple(ops_of_nodes), tuple(names), makers, read)


@functools.lru_cache(maxsize=1024)
def layer_saving(
    recording: Recording, saved_ops: tuple[str, ...], *, holds_unread: bool
) -> Subgraph:
    """Return a whole layer as a recomputed subgraph that saves the outputs of some ops.

    Args:
        recording: of the layer.
        saved_ops: kinds or names of the ops.
        holds_unread: outputs of saved ops that nothing reads are kept too, as by PyTorch's cache.
    """
    tensors = layer_tensors(recording)
    kept = tensors.kept_nodes(saved_ops)
    again, saved = tensors.needed(kept)
    if holds_unread:
        saved |= dict.fromkeys(tensors.unread(kept, saved))
    singles = tuple(Subgraph((node,)) for node in recording.nodes)
    reruns = tuple(singles[number] for number in again)
    return Subgraph(recording.nodes, _WHOLE_LAYER, singles, saved, reruns, tensors.read)


def check_saved_ops(layers: Iterable[Recording], saved_ops: tuple[str, ...]) -> None:
    """Check that each name is that of an op of some layer.

    Raises:
        InputError: a name is neither a kind nor the name of an op (E509).
    """
    words = (names for layer in layers for names in layer_tensors(layer).names)
    known = frozenset().union(*words) - {*OP_KINDS}
    for name in saved_ops:
        if name not in known and name not in OP_KINDS:
            raise _no_such_op(name, known)


def _kind(op: Op) -> str:
    match op.work:
        case Gemm() | GroupedGemm():
            return "products"
        case FusedAttention():
            return "attention"
        case Collective(kind=kind):
            return _COLLECTIVES.get(kind, "")
    return ""


def _no_such_op(name: str, known: frozenset[str]) -> InputError:
    near = difflib.get_close_matches(name, sorted(known), 1)
    kinds = f"a kind ({', '.join(OP_KINDS)})"
    fix = f"write {near[0]!r}, or {kinds}" if near else f"write {kinds}, or a name"
    message = f"recompute.saved_ops: no op of a layer is called {name!r}"
    return InputError.of("E509", message, fix=fix, reason=f"the ops are {', '.join(sorted(known))}")
