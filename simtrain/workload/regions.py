"""Regions of a block that are recomputed: what they keep, and what is then computed again.

A region that is recomputed keeps its inputs. It runs again just before its own backward pass, or,
if nothing keeps its outputs either, as soon as what used them starts its backward pass
(`tape.Region`). Regions within it are recomputed within that, once more.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.tape import Node, Recording, Region

Change = Callable[[Op], Op]


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A node, or the nodes of a region that is recomputed, divided into parts themselves."""

    nodes: tuple[Node, ...]
    region: Region | None = None
    parts: tuple[Subgraph, ...] = ()

    @cached_property
    def outputs(self) -> dict[Tensor, None]:
        """What its nodes produce, in order."""
        return dict.fromkeys(y for node in self.nodes for y in node.outputs)

    @cached_property
    def inputs(self) -> dict[Tensor, None]:
        """What its nodes use and do not produce, in order."""
        used = (x for node in self.nodes for x in node.inputs)
        return dict.fromkeys(x for x in used if x not in self.outputs)

    @property
    def discarded_after(self) -> Tensor | None:
        """The tensor after which nothing keeps its outputs, if there is one."""
        return self.region.discarded_after if self.region else None


def subgraphs_of(
    nodes: Sequence[Node], names: frozenset[str], within: Region | None = None
) -> tuple[Subgraph, ...]:
    """The nodes in order, those of a region with one of these names together.

    Of regions inside each other the outermost counts; all are inside of `within`, if given.
    """

    def region_or_self(node: Node) -> Region | Node:
        inner = node.regions[node.regions.index(within) + 1 :] if within else node.regions
        return next((region for region in inner if region.name in names), node)

    parts = []
    for one, group in itertools.groupby(nodes, key=region_or_self):
        members = tuple(group)
        if isinstance(one, Region):
            parts.append(Subgraph(members, one, subgraphs_of(members, names, one)))
        else:
            parts.append(Subgraph(members))
    return tuple(parts)


class TensorVersions:
    """Which tensor stands for a recorded one: itself, or one computed again.

    Args:
        recording: of the block.
        times: how often tensors have been computed again.
        known: what stands for tensors that have been computed more or less often.
    """

    def __init__(
        self, recording: Recording, times: int = 0, known: dict[Tensor, Tensor] | None = None
    ) -> None:
        self.recording, self.times, self.known = recording, times, known or {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor."""
        return self.known.get(tensor) or _again(tensor, self.recording, self.times)

    def within(self, part: Subgraph) -> TensorVersions:
        """Those of a part that is run again: only its inputs are as before."""
        return TensorVersions(self.recording, self.times + 1, {x: self(x) for x in part.inputs})

    def renew(self, part: Subgraph) -> None:
        """Let what a part has computed again stand for its outputs."""
        self.known |= {y: _again(y, self.recording, self.times + 1) for y in part.outputs}

    def saved(self, op: Op) -> Op:
        """An op that saves what stands for the tensors that it saves."""
        return op.replace(saves=tuple(map(self, op.saves))) if self.times else op

    def read(self, op: Op) -> Op:
        """An op that reads what stands for the tensors that it reads."""
        is_changed = self.times or self.known
        return op.replace(reads=tuple(map(self, op.reads))) if is_changed else op


def run_forward(
    order: IssueOrder,
    parts: Sequence[Subgraph],
    versions: TensorVersions,
    change: Change = lambda op: op,
    waiting_bytes: int = 0,
) -> tuple[int, ...]:
    """Run parts forward; those that are run again later save their inputs and nothing else.

    Args:
        order: takes the ops.
        parts: in order.
        versions: what stands for the tensors that ops save.
        change: is applied to each op.
        waiting_bytes: of a gradient that exists meanwhile.

    Returns how many ops have been issued when each part has run.
    """

    def kept_of(part: Subgraph) -> Change:
        keep = saving_only(part.inputs) if part.region else lambda op: op
        return lambda op: change(versions.saved(keep(op)))

    ends = []
    for part in parts:
        first = order.position
        with order.transforming(kept_of(part), waiting_bytes):
            for node in part.nodes:
                node.forward(order)
        if part.region and order.position > first:
            # The part's own ops may not save all that it starts from.
            save(order, first, map(versions, part.inputs))
        ends.append(order.position)
    return tuple(ends)


def save(order: IssueOrder, position: int, tensors: Iterable[Tensor]) -> None:
    """Let an op save tensors that no op from there on saves."""
    saved = order.saved_since(position)
    for tensor in tensors:
        if tensor not in saved:
            order.change(position, functools.partial(saving_too, tensor=tensor))


def _again(tensor: Tensor, recording: Recording, times: int) -> Tensor:
    """The same tensor, computed again so often."""
    # Gradients and what weight gradients defer have the second and the third range of numbers.
    ranges = 3 * times - 2 if times else 0
    return derived(tensor, tensor.name, ranges * recording.num_tensors)


def derived(tensor: Tensor, name: str, offset: int) -> Tensor:
    """A tensor of the same size, with a number and a storage of its own."""
    number, storage = tensor.number + offset, tensor.storage + offset
    return replace(tensor, name=name, number=number, storage=storage)


def saving_only(kept: Collection[Tensor]) -> Change:
    """Keep of what an op saves only these, and those of them that it reads."""
    return lambda op: op.replace(saves=tuple(t for t in (*op.saves, *op.reads) if t in kept))


def saving_too(op: Op, tensor: Tensor) -> Op:
    """An op that also saves a tensor."""
    return op if tensor in op.saves else op.replace(saves=(*op.saves, tensor))
