"""Recompute of parts of a layer, and of all ops but some: what is saved and computed again.

The layer saves its input and the outputs of some ops. Before its backward pass, it computes again
every other tensor that the backward pass reads, and what these need. Source: PyTorch's
`create_selective_checkpoint_contexts` (torch/utils/checkpoint.py), which stops recomputing at the
last tensor that is read.
"""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simtrain.errors import InputError
from simtrain.scenario.section import OP_KINDS
from simtrain.workload.issue import IssueOrder, OverlapPolicy
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.tape import Node, Recording, Region
from simtrain.workload.work import Collective, CollectiveKind, FusedAttention, Gemm, GroupedGemm

# Recomputed regions of a block: the tensors that they save, and their second forward pass.
#
# A recomputed region saves its inputs. It is recomputed just before its own backward pass. If its
# outputs are discarded too, it is recomputed as soon as the backward pass of their users starts
# (`tape.Region`). Regions inside it are recomputed again within its recompute.

Change = Callable[[Op], Op]


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A node, or the nodes of a recomputed region, which has subgraphs of its own.

    Args:
        nodes: in order.
        region: the region; None for a single node.
        subgraphs: of the region, in order.
        kept: tensors that the region saves in addition to its inputs.
        reruns: subgraphs that a recompute runs; None for all.
        read: tensors that the backward pass reads, so that a recompute saves them even if the op
            that saved them does not run again.
    """

    nodes: tuple[Node, ...]
    region: Region | None = None
    subgraphs: tuple[Subgraph, ...] = ()
    kept: Mapping[Tensor, None] = field(default_factory=dict)
    reruns: tuple[Subgraph, ...] | None = None
    read: Collection[Tensor] = ()

    @property
    def saved(self) -> dict[Tensor, None]:
        return {**self.inputs, **self.kept}

    @property
    def recomputed(self) -> tuple[Subgraph, ...]:
        return self.subgraphs if self.reruns is None else self.reruns

    @cached_property
    def outputs(self) -> dict[Tensor, None]:
        return dict.fromkeys(y for node in self.nodes for y in node.outputs)

    @cached_property
    def inputs(self) -> dict[Tensor, None]:
        used = (x for node in self.nodes for x in node.inputs)
        return dict.fromkeys(x for x in used if x not in self.outputs)

    @property
    def discarded_after(self) -> Tensor | None:
        return self.region.discarded_after if self.region else None


def subgraphs_of(
    nodes: Sequence[Node], names: frozenset[str], within: Region | None = None
) -> tuple[Subgraph, ...]:
    """Divide nodes into subgraphs, in order: one for each recomputed region, one for other nodes.

    Args:
        nodes: in order.
        names: names of recomputed regions; of nested regions, the outermost is taken.
        within: consider only regions inside this one.
    """

    def region_or_self(node: Node) -> Region | Node:
        inner = node.regions[node.regions.index(within) + 1 :] if within else node.regions
        return next((region for region in inner if region.name in names), node)

    subgraphs = []
    for key, group in itertools.groupby(nodes, key=region_or_self):
        members = tuple(group)
        if isinstance(key, Region) and any(node.has_backward for node in members):
            subgraphs.append(Subgraph(members, key, subgraphs_of(members, names, key)))
        else:
            subgraphs.extend(Subgraph((node,)) for node in members)
    return tuple(subgraphs)


@dataclass(slots=True, eq=False)
class TensorVersions:
    """Maps recorded tensors to their current versions: themselves, or recomputed copies.

    Args:
        recording: recording of the block.
        num_recomputes: number of times that tensors have been recomputed.
        replacements: versions of tensors that were recomputed more or less often.
    """

    recording: Recording
    num_recomputes: int = 0
    replacements: dict[Tensor, Tensor] = field(default_factory=dict)

    def __call__(self, tensor: Tensor) -> Tensor:
        return self.replacements.get(tensor) or _recomputed(
            tensor, self.recording, self.num_recomputes
        )

    def within(self, subgraph: Subgraph) -> TensorVersions:
        return TensorVersions(
            self.recording, self.num_recomputes + 1, {x: self(x) for x in subgraph.saved}
        )

    def use_recomputed(self, subgraph: Subgraph) -> None:
        self.replacements |= {
            y: _recomputed(y, self.recording, self.num_recomputes + 1) for y in subgraph.outputs
        }

    def saved(self, op: Op) -> Op:
        return op.replace(saves=tuple(map(self, op.saves))) if self.num_recomputes else op

    def read(self, op: Op) -> Op:
        is_changed = self.num_recomputes or self.replacements
        return op.replace(reads=tuple(map(self, op.reads))) if is_changed else op


def run_forward(
    order: IssueOrder,
    subgraphs: Sequence[Subgraph],
    versions: TensorVersions,
    change: Change = lambda op: op,
    waiting_bytes: int = 0,
) -> tuple[int, ...]:
    """Run subgraphs forward. Recomputed ones save only their inputs and what they keep.

    Args:
        order: receives the ops.
        subgraphs: in order.
        versions: versions of the tensors that ops save.
        change: applied to each op.
        waiting_bytes: bytes of gradients that exist at the same time.

    Returns:
        For each subgraph, the number of ops issued when it ends.
    """

    def saved_of(subgraph: Subgraph) -> Change:
        filter_saved = saving_only(subgraph.saved) if subgraph.region else lambda op: op
        return lambda op: change(versions.saved(filter_saved(op)))

    ends = []
    for subgraph in subgraphs:
        first = order.position
        with order.transforming(saved_of(subgraph), waiting_bytes):
            runs_again = versions.num_recomputes > 0 and subgraph.region is None
            for node in subgraph.nodes:
                (node.again if runs_again else node.forward)(order)
                if order.position > first:
                    made = [y for y in node.outputs if y in subgraph.kept]
                    save(order, order.position - 1, map(versions, made))
        if subgraph.region and order.position > first:
            # The ops of the subgraph may not save all of its inputs.
            save(order, first, map(versions, subgraph.inputs))
        ends.append(order.position)
    return tuple(ends)


def save(order: IssueOrder, position: int, tensors: Iterable[Tensor]) -> None:
    """Make the op at `position` save the tensors that no op from there onwards saves."""
    saved = order.saved_since(position)
    for tensor in tensors:
        if tensor not in saved:
            order.change(position, functools.partial(saving_too, tensor=tensor))


def _recomputed(tensor: Tensor, recording: Recording, num_recomputes: int) -> Tensor:
    # Gradients have the second range of numbers, deferred gradients the third.
    ranges = 3 * num_recomputes - 2 if num_recomputes else 0
    return derived(tensor, tensor.name, ranges * recording.num_tensors)


def derived(tensor: Tensor, name: str, offset: int) -> Tensor:
    """Return a tensor of the same size with another number and storage."""
    sizes = tensor.rows, tensor.width, tensor.element_bytes
    return Tensor(name, *sizes, tensor.number + offset, tensor.storage + offset)


def saving_only(tensors: Collection[Tensor]) -> Change:
    """Make an op save only the tensors in `tensors` that it saves or reads."""
    return lambda op: op.replace(saves=tuple(t for t in (*op.saves, *op.reads) if t in tensors))


def saving_too(op: Op, tensor: Tensor) -> Op:
    """Return an op that also saves a tensor."""
    return op if tensor in op.saves else op.replace(saves=(*op.saves, tensor))


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
