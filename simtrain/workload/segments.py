"""Derives the segments of a block's passes (forward, recompute, backward) from its recording.

The backward pass runs the nodes last to first. It sums the gradients of a tensor that several nodes
use, and saves a gradient if other nodes run before the one that reads it. A saved tensor is freed
after the last op that reads it. A split backward pass issues input gradients (`I`) and weight
gradients (`W`) separately, and saves the gradients that `W` reads. A block may recompute regions of
itself (`tape.Region`), which may contain recomputed regions.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import IssueOrder, OverlapPolicy, Segment
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.recompute import CHECKPOINTED_NORM, NO_RECOMPUTE, BlockRecompute
from simtrain.workload.saved_ops import (
    Subgraph,
    TensorVersions,
    derived,
    layer_saving,
    layer_tensors,
    run_forward,
    save,
    saving_only,
    saving_too,
    subgraphs_of,
)
from simtrain.workload.tape import Block, Microbatch, Node, Recording, record

BackwardKind = Literal["B", "I", "W"]
"""A whole backward pass, its input gradients, or its weight gradients."""


@hashed_once
@dataclass(frozen=True)
class BlockRun:
    """A block on a rank, with everything that determines its segments."""

    block: Block
    microbatch: Microbatch
    overlap: OverlapPolicy
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


@functools.lru_cache(maxsize=4096)
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


@functools.lru_cache(maxsize=4096)
def recompute_segment(run: BlockRun, waiting_bytes: int) -> Segment:
    """Return the recompute of a whole block within the backward pass.

    The gradient of its unit's output, of `waiting_bytes`, exists at the same time. A stack may stop
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
    with order.transforming(_as_recompute, waiting_bytes):
        for node in nodes:
            node.forward(order)
    for tensor in dict.fromkeys(tensor for op in left_out for tensor in op.saves):
        order.change(-1, lambda op, tensor=tensor: saving_too(op, tensor))  # type: ignore[misc]
    return order.segment()


@functools.lru_cache(maxsize=4096)
def backward_segment(run: BlockRun, kind: BackwardKind = "B") -> Segment:
    """Return the backward pass of a block, or a half of it."""
    if kind == "B":
        whole = _Backward(run, kind).segment()
        return replace(whole, frees=_frees(run, whole.ops))
    inputs, weights = _backward_halves(run)
    return inputs if kind == "I" else weights


@functools.lru_cache(maxsize=4096)
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
        return self.held_gradients.get(tensor, self.unsaved_views) not in self.unsaved_views

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
                gradient = _gradient(tensor, self.recording)
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


def _gradient(tensor: Tensor, recording: Recording) -> Tensor:
    return derived(tensor, f"gradient of {tensor.name}", 2 * recording.num_tensors)


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
