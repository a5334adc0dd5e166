"""From a block's recording to the segments of its passes: forward, again, backward.

The backward pass is derived: nodes run last to first, gradients of a tensor that several nodes use
are summed, and a gradient that waits for something else to run is held meanwhile. A saved tensor is
freed after the last op that reads it. A split backward pass issues the ops of the input gradients
(`I`) and those of the weight gradients (`W`) apart; what `W` reads of gradients is held in between.
A block may recompute parts of itself (`tape.Region`), and these parts of themselves.
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
from simtrain.workload.regions import (
    Subgraph,
    TensorVersions,
    derived,
    run_forward,
    save,
    saving_only,
    saving_too,
    subgraphs_of,
)
from simtrain.workload.tape import Block, Microbatch, Node, Recording, record

BackwardKind = Literal["B", "I", "W"]
"""A whole backward pass, or its input gradients, or its weight gradients."""


@dataclass(frozen=True, slots=True)
class BlockRecompute:
    """What a block drops in its forward pass and runs again in its backward pass.

    Args:
        regions: names of its regions that drop all but their inputs.
        drops_all: it keeps nothing, or only its input.
        keeps_input: whether it then keeps that, as the first block of a unit.
    """

    regions: frozenset[str] = frozenset()
    whole_block: bool = False
    saves_input: bool = False


NO_RECOMPUTE = BlockRecompute()


@hashed_once
@dataclass(frozen=True)
class BlockRun:
    """A block on a rank: all that its segments follow from."""

    block: Block
    microbatch: Microbatch
    overlap: OverlapPolicy
    block_recompute: BlockRecompute = NO_RECOMPUTE

    @property
    def recording(self) -> Recording:
        """What its forward pass records."""
        return record(self.block, self.microbatch)


@functools.lru_cache(maxsize=4096)
def forward_segment(run: BlockRun) -> Segment:
    """The forward pass of a block."""
    recording, block_recompute = run.recording, run.block_recompute
    order = IssueOrder(run.overlap)
    if not block_recompute.whole_block:
        parts = subgraphs_of(recording.nodes, block_recompute.regions)
        ends = run_forward(order, parts, TensorVersions(recording))
        return _discarding(order.segment(), parts, ends)
    with order.transforming(
        saving_only({recording.block_input} if block_recompute.saves_input else ())
    ):
        for node in recording.nodes:
            node.forward(order)
    if block_recompute.saves_input:
        order.change(0, lambda op: saving_too(op, recording.block_input))
    return order.segment()


@functools.lru_cache(maxsize=4096)
def recompute_segment(run: BlockRun, waiting_bytes: int) -> Segment:
    """The forward pass of a block that dropped all, within the backward pass.

    The gradient of its unit's output, of `waiting_bytes`, exists meanwhile.
    """
    order = IssueOrder(run.overlap)
    with order.transforming(_as_recompute, waiting_bytes):
        for node in run.recording.nodes:
            node.forward(order)
    return order.segment()


@functools.lru_cache(maxsize=4096)
def backward_segment(run: BlockRun, kind: BackwardKind = "B") -> Segment:
    """The backward pass of a block, or a half of it."""
    if kind == "B":
        whole = _Backward(run, kind).segment()
        return replace(whole, frees=_frees(run, whole.ops))
    halves = _Backward(run, "I").segment(), _Backward(run, "W").segment()
    frees = _frees(run, halves[0].ops + halves[1].ops)
    place = len(halves[0].ops)
    if kind == "I":
        return replace(halves[0], frees=frees[:place])
    return replace(halves[1], frees=frees[place:])


def _discarding(segment: Segment, parts: Sequence[Subgraph], ends: Sequence[int]) -> Segment:
    """A forward pass that drops outputs of parts once nothing forward needs them."""
    computed_at = {y: end for part, end in zip(parts, ends, strict=True) for y in part.outputs}
    frees: list[tuple[Tensor, ...]] = [()] * len(segment.ops)
    for part in parts:
        if part.discarded_after:
            end = computed_at[part.discarded_after]
            saved = (tensor for op in segment.ops[:end] for tensor in op.saves)
            frees[end - 1] += tuple(dict.fromkeys(x for x in saved if x in part.outputs))
    return replace(segment, frees=tuple(frees)) if any(frees) else segment


class _Backward:
    """Derives the backward pass of a block, node by node."""

    def __init__(self, run: BlockRun, kind: BackwardKind) -> None:
        self.recording, self.kind = run.recording, kind
        self.parts = subgraphs_of(run.recording.nodes, run.block_recompute.regions)
        self.order = IssueOrder(run.overlap, _WANTED[kind])
        self.waiting: dict[Tensor, Tensor] = {}
        """Gradients that are held until something else has run, by their tensors."""
        self.to_hold: list[Tensor] = []
        """Those of them that no op has produced: views of the gradient that the block is given."""
        self.producer, self.users = _flow(self.recording.nodes)

    def segment(self) -> Segment:
        """All ops, last node first."""
        self.go_back(self.parts, TensorVersions(self.recording))
        return self.order.segment()

    def go_back(self, parts: Sequence[Subgraph], versions: TensorVersions) -> None:
        """Run parts backward, last part first, and again what they have dropped."""
        for part in reversed(parts):
            for one in parts:
                if one.discarded_after in part.outputs:
                    self.run_again(one, versions.within(one))
                    versions.renew(one)
            if part.region is None:
                self.node_back(part.nodes[0], versions)
                continue
            inside = versions.within(part)
            if part.discarded_after is None:
                self.run_again(part, inside)
            self.go_back(part.parts, inside)

    def node_back(self, node: Node, versions: TensorVersions) -> None:
        """Run a node backward."""
        first = self.order.position
        if node.backward:
            with self.order.transforming(versions.read):
                node.backward(self.order)
        self.gradients_of_outputs(node, first)
        self.gradients_of_inputs(self.index(node), node, first)

    def run_again(self, part: Subgraph, versions: TensorVersions) -> None:
        """Run a part forward again, between the backward pass of what follows it and its own."""
        first, own = self.order.position, {*part.nodes}
        used_later = [y for y in part.outputs if not self.users[y] <= own]
        waiting = [y for y in part.outputs if y in used_later or y == self.recording.block_output]
        if part.discarded_after:
            waiting = [y for y in [part.discarded_after] if not self.holds_gradient(y)]
        waiting_bytes = sum(tensor.num_bytes for tensor in waiting)
        ends = run_forward(self.order, part.parts, versions, _as_recompute, waiting_bytes)
        if self.order.position == first:
            return
        for one, end in zip(part.parts, ends, strict=True):
            if part.discarded_after:
                save(self.order, end - 1, [versions(y) for y in one.outputs if y in used_later])
        saved = self.order.saved_since(first)
        for tensor in map(versions, part.inputs):
            if tensor not in saved:
                self.reading(first, tensor)

    def holds_gradient(self, tensor: Tensor) -> bool:
        """Whether an op has saved the gradient of a tensor."""
        return self.waiting.get(tensor, self.to_hold) not in self.to_hold

    def gradients_of_outputs(self, node: Node, first: int) -> None:
        """What the node's backward reads: gradients that waited, and what `W` needs of them."""
        if self.order.position == first:
            return
        for gradient in self.to_hold:
            self.saving(first, gradient)
        self.to_hold.clear()
        for tensor in node.outputs:
            if tensor in self.waiting:
                self.reading(first, self.waiting.pop(tensor))
        if node.deferred_gradient_bytes and self.kind != "B":
            gradient = _deferred(node, self.recording)
            if self.kind == "I":
                self.saving(first, gradient)
            else:
                self.reading(self.order.position - 1, gradient)

    def gradients_of_inputs(self, place: int, node: Node, first: int) -> None:
        """Sum the gradient of each input, and hold it unless the next node to run takes it.

        Without an op, the gradients of inputs as large as the output are one tensor, its gradient.
        """
        if self.kind == "W":
            return
        shared: Tensor | None = None
        for tensor in node.inputs:
            holder = first
            if tensor in self.waiting:
                self.add(node, tensor)
                holder = self.order.position - 1
            earlier = [user for user in self.users[tensor] if self.index(user) < place]
            if earlier or self.producer.get(tensor, place - 1) != place - 1:
                gradient = _gradient(tensor, self.recording)
                if holder == self.order.position and tensor.num_bytes == node.outputs[0].num_bytes:
                    gradient = shared = shared or gradient
                self.waiting[tensor] = gradient
                if holder < self.order.position:
                    self.saving(holder, gradient)
                else:
                    self.to_hold.append(gradient)

    def add(self, node: Node, tensor: Tensor) -> None:
        """Sum the gradients of a tensor that two nodes use."""
        read_bytes, phase = 2 * tensor.num_bytes, Phase.INPUT_GRADIENT
        name = f"{node.name} residual sum"
        waited = (self.waiting.pop(tensor),)
        self.order.compute(elementwise(name, read_bytes, tensor.num_bytes, phase, reads=waited))

    def index(self, node: Node) -> int:
        return self.recording.nodes.index(node)

    def saving(self, position: int, tensor: Tensor) -> None:
        self.order.change(position, lambda op: saving_too(op, tensor))

    def reading(self, position: int, tensor: Tensor) -> None:
        self.order.change(position, lambda op: op.replace(reads=(*op.reads, tensor)))


def _flow(nodes: Sequence[Node]) -> tuple[dict[Tensor, int], dict[Tensor, set[Node]]]:
    """The place of the node that produces each tensor, and the nodes that use it."""
    producer = {tensor: i for i, node in enumerate(nodes) for tensor in node.outputs}
    users: dict[Tensor, set[Node]] = defaultdict(set)
    for node in nodes:
        for tensor in node.inputs:
            users[tensor].add(node)
    return producer, users


def _frees(run: BlockRun, ops: Sequence[Op]) -> tuple[tuple[Tensor, ...], ...]:
    """For each op of a backward pass the tensors that no later op reads.

    Views of one storage are freed together. The input of a unit is freed at once if nothing
    reads it.
    """
    last: dict[int, int] = {}
    views: dict[int, dict[Tensor, None]] = defaultdict(dict)
    if run.block_recompute.saves_input:
        last[run.recording.block_input.storage] = 0
        views[run.recording.block_input.storage] = {run.recording.block_input: None}
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
    """What the weight gradient of a node reads of its output's gradient."""
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
