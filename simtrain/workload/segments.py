"""Derives the segments of a block's passes (forward, recompute, backward) from its recording.

The backward pass runs the nodes last to first. It sums the gradients of a tensor that several nodes
use, and saves a gradient if other nodes run before the one that reads it. A saved tensor is freed
after the last op that reads it. A split backward pass issues input gradients (`I`) and weight
gradients (`W`) separately, and saves the gradients that `W` reads. A block may recompute regions of
itself (`tape.Region`), which may contain recomputed regions.

Recompute by op: a layer saves its input and the outputs of some ops. Before its backward pass, it
computes again every other tensor that the backward pass reads, and what these need. Source:
PyTorch's `create_selective_checkpoint_contexts` (torch/utils/checkpoint.py), which stops
recomputing at the last tensor that is read.
"""

from __future__ import annotations

import difflib
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from simtrain.base.values import dataclass, field, replace
from simtrain.errors import InputError
from simtrain.scenario.section import OP_KINDS
from simtrain.workload.issue import IssueOrder, OverlapPolicy, Segment
from simtrain.workload.lengths import for_any_length
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.recompute import CHECKPOINTED_NORM, NO_RECOMPUTE, BlockRecompute
from simtrain.workload.tape import Block, Microbatch, Node, Parameter, Recording, Region, record
from simtrain.workload.work import Collective, FusedAttention, Gemm, GroupedGemm

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

    Of nested regions with these names, the outermost is taken. Only regions inside `within` count.
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
    """Run subgraphs forward; return for each the number of ops issued when it ends.

    Recomputed ones save only their inputs and what they keep. `change` is applied to each op.
    `waiting_bytes` of gradients exist at the same time.
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

    With `holds_unread`, outputs that nothing reads are kept too, as by PyTorch's cache.
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
    """Check that each name is a kind or the name of an op of some layer, else raise E509."""
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
            return word if (word := f"{kind}s") in OP_KINDS else ""
    return ""


def _no_such_op(name: str, known: frozenset[str]) -> InputError:
    near = difflib.get_close_matches(name, sorted(known), 1)
    kinds = f"a kind ({', '.join(OP_KINDS)})"
    fix = f"write {near[0]!r}, or {kinds}" if near else f"write {kinds}, or a name"
    message = f"recompute.saved_ops: no op of a layer is called {name!r}"
    return InputError.of("E509", message, fix=fix, reason=f"the ops are {', '.join(sorted(known))}")


BackwardKind = Literal["B", "I", "W"]
"""A whole backward pass, its input gradients, or its weight gradients."""


class BlockRun(NamedTuple):
    """A block on a rank, with everything that determines its segments."""

    block: Block
    microbatch: Microbatch
    overlap: OverlapPolicy = OverlapPolicy()
    block_recompute: BlockRecompute = NO_RECOMPUTE

    @property
    def recording(self) -> Recording:
        return record(self.block, self.microbatch)

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The nodes, in order, as recomputed subgraphs and single nodes."""
        recording, block_recompute = self.recording, self.block_recompute
        if block_recompute.saved_ops is None:
            regions = block_recompute.regions
            if not block_recompute.whole_block:
                regions |= {CHECKPOINTED_NORM}
            return subgraphs_of(recording.nodes, regions)
        holds_unread = not self.microbatch.kernels.partitions_recompute
        return (layer_saving(recording, block_recompute.saved_ops, holds_unread=holds_unread),)


@for_any_length
def block_parameters(run: BlockRun) -> tuple[Parameter, ...]:
    """Return the parameters of a block, of which its overlap and recompute determine nothing."""
    return run.recording.parameters


@for_any_length
def forward_segment(run: BlockRun) -> Segment:
    """Return the forward pass of a block."""
    recording, block_recompute = run.recording, run.block_recompute
    block_input, order = recording.block_input, IssueOrder(run.overlap)
    if not block_recompute.whole_block:
        subgraphs = run.subgraphs
        ends = run_forward(order, subgraphs, TensorVersions(recording))
        return _with_discards(order.segment(), subgraphs, ends)
    with order.transforming(saving_only({block_input} if block_recompute.saves_input else ())):
        for node in recording.nodes:
            node.forward(order)
    if block_recompute.saves_input:
        order.change(0, lambda op: saving_too(op, block_input))
    return order.segment()


@for_any_length
def recompute_segment(run: BlockRun) -> Segment:
    """Return the recompute of a whole block within the backward pass.

    The gradient of its unit's output exists at the same time. A stack may stop
    at the last tensor that the backward pass reads (torch/utils/checkpoint.py, `early_stop`).
    """
    order, nodes = IssueOrder(run.overlap), run.recording.nodes
    left_out: Sequence[Op] = ()
    if run.block_recompute.ends_unit and run.microbatch.kernels.stops_recompute:
        tensors = layer_tensors(run.recording)
        again, _ = tensors.needed(frozenset())
        nodes = tuple(nodes[number] for number in again)
        left_out = [
            op for number, ops in enumerate(tensors.ops) if number not in again for op in ops
        ]
    with order.transforming(_as_recompute, run.microbatch.local_bytes):
        for node in nodes:
            node.forward(order)
    for tensor in dict.fromkeys(tensor for op in left_out for tensor in op.saves):
        order.change(-1, lambda op, tensor=tensor: saving_too(op, tensor))  # type: ignore[misc]
    return order.segment()


def backward_segment(run: BlockRun, kind: str = "B") -> Segment:
    """Return the backward pass of a block, or a half of it."""
    if kind == "B":
        return _whole_backward(run)
    inputs, weights = _backward_halves(run)
    return inputs if kind == "I" else weights


@for_any_length
def _whole_backward(run: BlockRun) -> Segment:
    whole = _Backward(run, "B").segment()
    return replace(whole, frees=_frees(run, whole.ops))


@for_any_length
def _backward_halves(run: BlockRun) -> tuple[Segment, Segment]:
    """Return the input gradients and the weight gradients of a block."""
    inputs, weights = _Backward(run, "I").segment(), _Backward(run, "W").segment()
    frees = _frees(run, inputs.ops + weights.ops)
    place = len(inputs.ops)
    return replace(inputs, frees=frees[:place]), replace(weights, frees=frees[place:])


def _with_discards(segment: Segment, subgraphs: Sequence[Subgraph], ends: Sequence[int]) -> Segment:
    """Free the outputs of subgraphs that are discarded after a later tensor."""
    computed_at = {
        y: end for subgraph, end in zip(subgraphs, ends, strict=True) for y in subgraph.outputs
    }
    frees: list[tuple[Tensor, ...]] = [()] * len(segment.ops)
    for subgraph in subgraphs:
        if subgraph.discarded_after:
            end = computed_at[subgraph.discarded_after]
            saved = (tensor for op in segment.ops[:end] for tensor in op.saves)
            frees[end - 1] += tuple(dict.fromkeys(x for x in saved if x in subgraph.outputs))
    return replace(segment, frees=tuple(frees)) if any(frees) else segment


class _Backward:
    """Derives the backward pass of a block, node by node; `kind` selects the half."""

    def __init__(self, run: BlockRun, kind: BackwardKind) -> None:
        self.recording, self.kind = run.recording, kind
        self.subgraphs = run.subgraphs
        self.order = IssueOrder(run.overlap, _WANTED[kind])
        self.held_gradients: dict[Tensor, Tensor] = {}
        """Saved gradients that are read after other nodes have run, by tensor."""
        self.unsaved_views: list[Tensor] = []
        """Gradients that no op has saved yet: views of the gradient of the block's output."""
        self.producer, self.users = _flow(self.recording.nodes)

    def segment(self) -> Segment:
        self.run_backward(self.subgraphs, TensorVersions(self.recording))
        if self.kind != "W":
            self.free_unread()
        return self.order.segment()

    def free_unread(self) -> None:
        """Let the first op read what recompute by op has kept and no op reads."""
        kept = [tensor for subgraph in self.subgraphs if subgraph.kept for tensor in subgraph.saved]
        saved = self.order.saved_since(0)
        ops = self.order.segment().ops if kept else ()
        read = {tensor for op in ops for tensor in op.reads}
        for tensor in kept:
            if tensor not in saved and tensor not in read:
                self.make_read(0, tensor)

    def run_backward(self, subgraphs: Sequence[Subgraph], versions: TensorVersions) -> None:
        """Run subgraphs backward, last first, and recompute what they have discarded."""
        discarded = [subgraph for subgraph in subgraphs if subgraph.discarded_after]
        for subgraph in reversed(subgraphs):
            for other in discarded:
                if other.discarded_after in subgraph.outputs:
                    self.recompute(other, versions.within(other))
                    versions.use_recomputed(other)
            if subgraph.region is None:
                self.run_node_backward(subgraph.nodes[0], versions)
                continue
            inside = versions.within(subgraph)
            if subgraph.discarded_after is None:
                self.recompute(subgraph, inside)
            self.run_backward(subgraph.subgraphs, inside)

    def run_node_backward(self, node: Node, versions: TensorVersions) -> None:
        first = self.order.position
        with self.order.transforming(versions.read):
            node.backward(self.order)
        self.gradients_of_outputs(node, first)
        self.gradients_of_inputs(self.index(node), node, first)

    def recompute(self, subgraph: Subgraph, versions: TensorVersions) -> None:
        first, nodes = self.order.position, {*subgraph.nodes}
        used_later = [y for y in subgraph.outputs if not self.users[y] <= nodes]
        block_output = self.recording.block_output
        ready = [y for y in subgraph.outputs if y in used_later or y == block_output]
        if subgraph.discarded_after:
            ready = [y for y in [subgraph.discarded_after] if not self.holds_gradient(y)]
        waiting_bytes = sum(tensor.num_bytes for tensor in ready)
        reruns = subgraph.recomputed
        ends = run_forward(self.order, reruns, versions, _as_recompute, waiting_bytes)
        if self.order.position == first:
            return
        read = used_later if subgraph.discarded_after else subgraph.read
        for inner, end in zip(reruns, ends, strict=True):
            made = [versions(y) for y in inner.outputs if y in read]
            save(self.order, max(first, end - 1), made)
        for tensor in map(versions, subgraph.kept):
            # Kept until the recompute, which reads it, has ended.
            self.make_read(self.order.position - 1, tensor)
        saved = self.order.saved_since(first)
        for tensor in map(versions, subgraph.inputs):
            if tensor not in saved:
                self.make_read(first, tensor)

    def holds_gradient(self, tensor: Tensor) -> bool:
        return self.held_gradients.get(tensor) not in (None, *self.unsaved_views)

    def gradients_of_outputs(self, node: Node, first: int) -> None:
        """Make the ops of a node read saved gradients; save or read the gradients for `W`."""
        if self.order.position == first:
            return
        for gradient in self.unsaved_views:
            self.make_save(first, gradient)
        self.unsaved_views.clear()
        for tensor in node.outputs:
            if tensor in self.held_gradients:
                self.make_read(first, self.held_gradients.pop(tensor))
        if node.deferred_gradient_bytes and self.kind != "B":
            gradient = _deferred(node, self.recording)
            if self.kind == "I":
                self.make_save(first, gradient)
            else:
                self.make_read(self.order.position - 1, gradient)

    def gradients_of_inputs(self, place: int, node: Node, first: int) -> None:
        """Sum the gradient of each input, and save it unless the next node reads it.

        If the node has no backward op, inputs as large as its output share the output's gradient.
        """
        if self.kind == "W":
            return
        shared: Tensor | None = None
        for tensor in node.inputs:
            if tensor in self.recording.without_gradient:
                continue
            holder = first
            if tensor in self.held_gradients:
                self.add_gradients(node, tensor)
                holder = self.order.position - 1
            earlier = [user for user in self.users[tensor] if self.index(user) < place]
            if earlier or self.producer.get(tensor, place - 1) != place - 1:
                offset = 2 * self.recording.num_tensors
                gradient = derived(tensor, f"gradient of {tensor.name}", offset)
                if holder == self.order.position and tensor.num_bytes == node.outputs[0].num_bytes:
                    gradient = shared = shared or gradient
                self.held_gradients[tensor] = gradient
                if holder < self.order.position:
                    self.make_save(holder, gradient)
                else:
                    self.unsaved_views.append(gradient)

    def add_gradients(self, node: Node, tensor: Tensor) -> None:
        read_bytes, phase = 2 * tensor.num_bytes, Phase.INPUT_GRADIENT
        name = f"{node.name} residual sum"
        waited = (self.held_gradients.pop(tensor),)
        self.order.compute(elementwise(name, read_bytes, tensor.num_bytes, phase, reads=waited))

    def index(self, node: Node) -> int:
        return self.recording.nodes.index(node)

    def make_save(self, position: int, tensor: Tensor) -> None:
        self.order.change(position, lambda op: saving_too(op, tensor))

    def make_read(self, position: int, tensor: Tensor) -> None:
        self.order.change(position, lambda op: op.replace(reads=(*op.reads, tensor)))


def _flow(nodes: Sequence[Node]) -> tuple[dict[Tensor, int], dict[Tensor, set[Node]]]:
    producer = {tensor: i for i, node in enumerate(nodes) for tensor in node.outputs}
    users: dict[Tensor, set[Node]] = defaultdict(set)
    for node in nodes:
        for tensor in node.inputs:
            users[tensor].add(node)
    return producer, users


def _frees(run: BlockRun, ops: Sequence[Op]) -> tuple[tuple[Tensor, ...], ...]:
    """Return, for each op of a backward pass, the tensors that no later op reads.

    Views of one storage are freed together. The input of a unit that no op reads is freed at the
    first op.
    """
    last: dict[int, int] = {}
    views: dict[int, dict[Tensor, None]] = defaultdict(dict)
    if run.block_recompute.saves_input:
        block_input = run.recording.block_input
        last[block_input.storage] = 0
        views[block_input.storage] = {block_input: None}
    for place, op in enumerate(ops):
        for tensor in (*op.saves, *op.reads):
            last[tensor.storage] = place
            views[tensor.storage][tensor] = None
    freed: list[list[Tensor]] = [[] for _ in ops]
    for storage, place in last.items():
        freed[place].extend(views[storage])
    return tuple(map(tuple, freed))


def _deferred(node: Node, recording: Recording) -> Tensor:
    """Return the part of a node's output gradient that its weight gradient reads."""
    number = 3 * recording.num_tensors + recording.nodes.index(node)
    name = f"gradient of {node.name} output"
    return Tensor(name, node.deferred_gradient_bytes, 1, 1, number, number)


def _as_recompute(op: Op) -> Op:
    return op.replace(phase=Phase.RECOMPUTE)


_WANTED: dict[BackwardKind, Callable[[Op], bool]] = {
    "B": lambda op: True,
    "I": lambda op: op.phase is not Phase.WEIGHT_GRADIENT,
    "W": lambda op: op.phase is Phase.WEIGHT_GRADIENT,
}
