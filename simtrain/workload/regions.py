"""Recomputed regions of a block: the tensors that they save, and their second forward pass.

A recomputed region saves its inputs. It is recomputed just before its own backward pass. If its
outputs are discarded too, it is recomputed as soon as the backward pass of their users starts
(`tape.Region`). Regions inside it are recomputed again within its recompute.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.tape import Node, Recording, Region

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
        """Tensors that a recomputed region saves: its inputs, and those that it keeps."""
        return {**self.inputs, **self.kept}

    @property
    def recomputed(self) -> tuple[Subgraph, ...]:
        """Subgraphs that a recompute runs."""
        return self.subgraphs if self.reruns is None else self.reruns

    @cached_property
    def outputs(self) -> dict[Tensor, None]:
        """Tensors that its nodes produce, in order."""
        return dict.fromkeys(y for node in self.nodes for y in node.outputs)

    @cached_property
    def inputs(self) -> dict[Tensor, None]:
        """Tensors that its nodes use and do not produce, in order."""
        used = (x for node in self.nodes for x in node.inputs)
        return dict.fromkeys(x for x in used if x not in self.outputs)

    @property
    def discarded_after(self) -> Tensor | None:
        """The tensor after which its outputs are discarded, if they are."""
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
        """Return the versions inside a recomputed subgraph, which reads its saved inputs."""
        return TensorVersions(
            self.recording, self.num_recomputes + 1, {x: self(x) for x in subgraph.saved}
        )

    def use_recomputed(self, subgraph: Subgraph) -> None:
        """Replace the outputs of a subgraph by their recomputed versions."""
        self.replacements |= {
            y: _recomputed(y, self.recording, self.num_recomputes + 1) for y in subgraph.outputs
        }

    def saved(self, op: Op) -> Op:
        """Return an op that saves the current versions of its tensors."""
        return op.replace(saves=tuple(map(self, op.saves))) if self.num_recomputes else op

    def read(self, op: Op) -> Op:
        """Return an op that reads the current versions of its tensors."""
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
    """Return a tensor's version after `num_recomputes` recomputes."""
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
