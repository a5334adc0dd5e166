"""From a block's recording to the segments of its passes: forward, again, backward.

The backward pass is derived: nodes run last to first, gradients of a tensor that several nodes use
are summed, and a gradient that waits for something else to run is held meanwhile. A saved tensor is
freed after the last op that reads it. A split backward pass issues the ops of the input gradients
(`I`) and those of the weight gradients (`W`) apart; what `W` reads of gradients is held in between.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import IssueOrder, OverlapPolicy, Segment
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Block, Microbatch, Node, Recording, record

BackwardKind = Literal["B", "I", "W"]
"""A whole backward pass, or its input gradients, or its weight gradients."""
_Change = Callable[[Op], Op]


@dataclass(frozen=True, slots=True)
class Treatment:
    """What a block drops in its forward pass and runs again in its backward pass.

    Args:
        regions: parts of it that drop all but their inputs.
        drops_all: it keeps nothing, or only its input.
        keeps_input: whether it then keeps that, as the first block of a unit.
    """

    regions: frozenset[str] = frozenset()
    drops_all: bool = False
    keeps_input: bool = False


KEEP = Treatment()


@hashed_once
@dataclass(frozen=True)
class BlockRun:
    """A block on a rank: all that its segments follow from."""

    block: Block
    microbatch: Microbatch
    overlap: OverlapPolicy
    treatment: Treatment = KEEP

    @property
    def recording(self) -> Recording:
        """What its forward pass records."""
        return record(self.block, self.microbatch)


@functools.lru_cache(maxsize=4096)
def forward_segment(run: BlockRun) -> Segment:
    """The forward pass of a block."""
    recording, treatment = run.recording, run.treatment
    order = IssueOrder(run.overlap)
    for region, nodes in _regions(recording.nodes, treatment.regions):
        if treatment.drops_all:
            change = _saving_only({recording.given} if treatment.keeps_input else ())
        else:
            change = _saving_only(_inputs(nodes)) if region else _unchanged
        with order.changing(change):
            for node in nodes:
                node.forward(order)
    if treatment.keeps_input:
        order.change(0, lambda op: _saving_too(op, recording.given))
    return order.segment()


@functools.lru_cache(maxsize=4096)
def again_segment(run: BlockRun, waiting_bytes: int) -> Segment:
    """The forward pass of a block that dropped all, within the backward pass.

    The gradient of its unit's output, of `waiting_bytes`, exists meanwhile.
    """
    order = IssueOrder(run.overlap)
    with order.changing(_as_recompute, waiting_bytes):
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


class _Backward:
    """Derives the backward pass of a block, node by node."""

    def __init__(self, run: BlockRun, kind: BackwardKind) -> None:
        self.recording, self.kind = run.recording, kind
        self.regions = run.treatment.regions
        self.order = IssueOrder(run.overlap, _WANTED[kind])
        self.waiting: dict[Tensor, Tensor] = {}
        """Gradients that are held until something else has run, by their tensors."""
        self.to_hold: list[Tensor] = []
        """Those of them that no op has produced: views of the gradient that the block is given."""
        self.producer, self.users = _flow(self.recording.nodes)

    def segment(self) -> Segment:
        """All ops, last node first."""
        nodes = self.recording.nodes
        place = len(nodes)
        for region, members in reversed([*_regions(nodes, self.regions)]):
            change = self.run_again(members) if region else _unchanged
            for node in reversed(members):
                place -= 1
                with self.order.changing(change):
                    first = self.order.position
                    if node.backward:
                        node.backward(self.order)
                self.gradients_of_outputs(node, first)
                self.gradients_of_inputs(place, node, first)
        return self.order.segment()

    def run_again(self, members: Sequence[Node]) -> _Change:
        """Run a region again; returns what makes its backward read the tensors of this time."""
        inputs = _inputs(members)
        produced = [tensor for node in members for tensor in node.outputs]
        waiting_bytes = sum(
            tensor.num_bytes
            for tensor in produced
            if tensor == self.recording.result or not self.users[tensor] <= set(members)
        )

        def anew(tensor: Tensor) -> Tensor:
            return tensor if tensor in inputs else _again(tensor, self.recording)

        def as_recompute(op: Op) -> Op:
            return _as_recompute(op).replace(saves=tuple(map(anew, op.saves)))

        with self.order.changing(as_recompute, waiting_bytes):
            for node in members:
                node.forward(self.order)
        return lambda op: op.replace(reads=tuple(map(anew, op.reads)))

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
        self.order.change(position, lambda op: _saving_too(op, tensor))

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


def _regions(
    nodes: Sequence[Node], names: frozenset[str]
) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Consecutive nodes by region; "" for nodes outside of the named regions."""

    def region_of(node: Node) -> str:
        return next((region for region in node.regions if region in names), "")

    for region, members in itertools.groupby(nodes, key=region_of):
        yield region, tuple(members)


def _inputs(nodes: Sequence[Node]) -> set[Tensor]:
    """What nodes use and do not produce."""
    produced = {tensor for node in nodes for tensor in node.outputs}
    return {tensor for node in nodes for tensor in node.inputs} - produced


def _frees(run: BlockRun, ops: Sequence[Op]) -> tuple[tuple[Tensor, ...], ...]:
    """For each op of a backward pass the tensors that no later op reads.

    Views of one storage are freed together. The input of a unit is freed at once if nothing
    reads it.
    """
    last: dict[int, int] = {}
    views: dict[int, dict[Tensor, None]] = defaultdict(dict)
    if run.treatment.keeps_input:
        last[run.recording.given.storage] = 0
        views[run.recording.given.storage] = {run.recording.given: None}
    for place, op in enumerate(ops):
        for tensor in (*op.saves, *op.reads):
            last[tensor.storage] = place
            views[tensor.storage][tensor] = None
    freed: list[list[Tensor]] = [[] for _ in ops]
    for storage, place in last.items():
        freed[place].extend(views[storage])
    return tuple(map(tuple, freed))


def _again(tensor: Tensor, recording: Recording) -> Tensor:
    """The same tensor, computed again."""
    return _derived(tensor, tensor.name, recording.num_tensors)


def _gradient(tensor: Tensor, recording: Recording) -> Tensor:
    return _derived(tensor, f"gradient of {tensor.name}", 2 * recording.num_tensors)


def _derived(tensor: Tensor, name: str, offset: int) -> Tensor:
    number, storage = tensor.number + offset, tensor.storage + offset
    return replace(tensor, name=name, number=number, storage=storage)


def _deferred(node: Node, recording: Recording) -> Tensor:
    """What the weight gradient of a node reads of its output's gradient."""
    number = 3 * recording.num_tensors + recording.nodes.index(node)
    name = f"gradient of {node.name} output"
    return Tensor(name, node.deferred_gradient_bytes, 1, 1, number, number)


def _unchanged(op: Op) -> Op:
    return op


def _as_recompute(op: Op) -> Op:
    return op.replace(phase=Phase.RECOMPUTE)


def _saving_only(kept: Collection[Tensor]) -> _Change:
    """Keep of what an op saves only these, and those of them that it reads."""
    return lambda op: op.replace(saves=tuple(t for t in (*op.saves, *op.reads) if t in kept))


def _saving_too(op: Op, tensor: Tensor) -> Op:
    return op if tensor in op.saves else op.replace(saves=(*op.saves, tensor))


_WANTED: dict[BackwardKind, Callable[[Op], bool]] = {
    "B": lambda op: True,
    "I": lambda op: op.phase is not Phase.WEIGHT_GRADIENT,
    "W": lambda op: op.phase is Phase.WEIGHT_GRADIENT,
}
