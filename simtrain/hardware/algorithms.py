"""NCCL's algorithms of collectives: rings, trees, one inside and one across nodes, the switch.

Each is one object that says its entry in profiles and its time. Sources: Patarasuk and Yuan 2009
(rings); Sanders, Speck and Träff 2009 and NCCL 2.4 (double binary trees); NVLink SHARP, NCCL's NVLS
and NVLSTree (the switch).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from simtrain.base.entry import Entry, Fraction, Strict, Text
from simtrain.base.mesh import Group
from simtrain.base.quantities import NonNegativeSeconds
from simtrain.base.strict_yaml import FieldError
from simtrain.base.values import dataclass

Kind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter"]
"""Collectives that several algorithms can perform."""
KINDS: tuple[Kind, ...] = get_args(Kind)
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = KINDS


class NodeLinks(ABC):
    """A collective among GPUs of one node, and the node's links.

    Links are read when they are asked for: a node of one GPU has none.
    """

    kind: str
    array_bytes: float
    num_ranks: int

    @abstractmethod
    def measured_s(self, kind: str) -> float:
        """Return the time of a kind of collective on the same array, by the measured curves."""

    @property
    @abstractmethod
    def bytes_per_s(self) -> float:
        """Bandwidth of a GPU's NVLink, one way."""

    @property
    @abstractmethod
    def all_reduce_latency_s(self) -> float:
        """Latency of a measured all-reduce."""

    @property
    @abstractmethod
    def most_ranks_measured(self) -> int:
        """Ranks of the largest measured all-reduce."""


@dataclass(frozen=True, slots=True)
class NetworkLinks:
    """A collective of a group on several nodes, and the links between and inside the nodes.

    Args:
        kind: one of `KINDS`.
        array_bytes: size of the whole array.
        group: the ranks, spread evenly over their nodes.
        step_s: latency of a step between nodes.
        bytes_per_s: the group's bandwidth out of a node. All groups of the job are assumed to
            communicate at the same time, so it is a share in proportion to the group's ranks on
            that node.
        inside_s: time in which the bytes of a ring over all ranks cross the links inside a node.
        node: the same collective among the group's ranks on one node.
    """

    kind: str
    array_bytes: float
    group: Group
    step_s: float
    bytes_per_s: float
    inside_s: float
    node: NodeLinks


class CollectiveAlgorithm(ABC):
    """An algorithm of a library's collectives.

    The library takes the algorithm with the smallest estimate, as NCCL does, unless a profile says
    otherwise (`Collectives`). None as a time says that the algorithm cannot perform the collective.
    """

    name: ClassVar[str]
    """What a profile writes: the name of its entry in section `collectives`, and of the choice."""
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    """The collectives that it can perform."""

    def in_node_s(self, entry: Any, links: NodeLinks) -> float | None:
        """Return the time among GPUs of one node; None if the measured curves include it."""
        return None

    @abstractmethod
    def across_nodes_s(self, entry: Any, links: NetworkLinks) -> float | None:
        """Return the time over several nodes, with its entry of a profile."""


class Protocol(Strict):
    """Latencies and efficiency of one NCCL protocol (LL, LL128, Simple).

    A collective takes `base_latency` once, `node_step` for each step between GPUs of a node and
    `network_step` (by default `inter_node.step_latency`) for each step between nodes. It reaches
    `efficiency` of the group's bandwidth.
    """

    name: Text
    base_latency: NonNegativeSeconds
    node_step: NonNegativeSeconds
    network_step: NonNegativeSeconds | None = None
    efficiency: Fraction


Protocols: TypeAlias = Entry[Annotated[list[Protocol], Field(min_length=1)]]


@dataclass(frozen=True, slots=True)
class Steps:
    """A protocol's latencies (base, per step in a node, per step between nodes) and efficiency."""

    base_s: float
    node_s: float
    network_s: float
    efficiency: float = 1.0


def steps_of(protocols: Protocols, network_step_s: float) -> Iterator[Steps]:
    """Yield the latencies of each protocol.

    Args:
        protocols: an entry of section `collectives`.
        network_step_s: latency of a step between nodes if a protocol has none of its own.
    """
    for protocol in protocols.value:
        step_s = protocol.network_step
        yield Steps(
            protocol.base_latency,
            protocol.node_step,
            network_step_s if step_s is None else step_s,
            protocol.efficiency,
        )


class Ring(CollectiveAlgorithm):
    """One ring over all ranks, which enters and leaves each node once.

    Without an entry, every step takes the network's latency. Inside a node, the measured curves
    have the time of the library's choice, which is listed as a ring.
    """

    name = "ring"

    def in_node_s(self, entry: Protocols | None, links: NodeLinks) -> float:
        return links.measured_s(links.kind)

    def across_nodes_s(self, entry: Protocols | None, links: NetworkLinks) -> float:
        kind, size, group, rate = links.kind, links.array_bytes, links.group, links.bytes_per_s
        if entry is None:
            ring_s = ring_over_network_s(kind, size, group.num_ranks, links.step_s, rate)
        else:
            protocols = steps_of(entry, links.step_s)
            ring_s = min(ring_over_nodes_s(kind, size, group, steps, rate) for steps in protocols)
        return max(links.inside_s, ring_s)


def ring_passes(kind: str) -> int:
    """Passes around the ring: 2 for an all-reduce (reduce-scatter, then all-gather), else 1."""
    return 2 if kind == ALL_REDUCE else 1


def ring_bytes(kind: str, array_bytes: float, num_ranks: int) -> float:
    """Bytes that each rank sends around a ring (Patarasuk and Yuan 2009)."""
    return ring_passes(kind) * (num_ranks - 1) * array_bytes / num_ranks


def ring_over_network_s(
    kind: str, array_bytes: float, num_ranks: int, step_s: float, bytes_per_s: float
) -> float:
    """Time of a ring whose every step crosses the network."""
    latency_s = ring_passes(kind) * (num_ranks - 1) * step_s
    return latency_s + ring_bytes(kind, array_bytes, num_ranks) / bytes_per_s


def ring_over_nodes_s(
    kind: str, array_bytes: float, group: Group, steps: Steps, bytes_per_s: float
) -> float:
    """Time of a ring that enters and leaves each node once.

    Of the n - 1 steps of a pass over k nodes, k - 1 cross the network (nInterSteps in NCCL's
    model).
    """
    passes = ring_passes(kind)
    over_network = passes * (group.num_nodes - 1)
    inside = passes * (group.num_ranks - 1) - over_network
    latency_s = steps.base_s + inside * steps.node_s + over_network * steps.network_s
    wire_bytes = ring_bytes(kind, array_bytes, group.num_ranks)
    return latency_s + wire_bytes / (bytes_per_s * steps.efficiency)


class Tree(CollectiveAlgorithm):
    """An all-reduce up and down two trees, each with half the array."""

    name = "tree"
    kinds = (ALL_REDUCE,)

    def across_nodes_s(self, entry: Protocols, links: NetworkLinks) -> float:
        size, group, rate = links.array_bytes, links.group, links.bytes_per_s
        protocols = steps_of(entry, links.step_s)
        return max(links.inside_s, min(tree_s(size, group, steps, rate) for steps in protocols))


def tree_bytes(array_bytes: float, num_nodes: int) -> float:
    """Bytes that leave a node in an all-reduce over two binary trees, each with half the array.

    An inner node of one tree is a leaf of the other: a node sends half the array to its parent in
    each tree, and half to each of its two children on the way down. With two nodes, each is the
    other's parent in one tree and sends the array once.
    """
    return array_bytes if num_nodes == 2 else 2 * array_bytes


def tree_s(array_bytes: float, group: Group, steps: Steps, bytes_per_s: float) -> float:
    """Time of an all-reduce over trees of nodes, with a chain of the group's GPUs in each node.

    The latency is NCCL's: 2 ((ranks per node - 1) steps in the node + log2(nodes) between nodes).
    """
    depth = math.ceil(math.log2(group.num_nodes))
    latency_s = steps.base_s + 2 * ((group.ranks_per_node - 1) * steps.node_s)
    latency_s += 2 * depth * steps.network_s
    return latency_s + tree_bytes(array_bytes, group.num_nodes) / (bytes_per_s * steps.efficiency)


class Hierarchical(CollectiveAlgorithm):
    """Rings across nodes, one for each rank of a node, around collectives inside the nodes."""

    name = "hierarchical"

    def across_nodes_s(self, entry: Protocols, links: NetworkLinks) -> float | None:
        if links.group.ranks_per_node == 1:
            return None
        kind, size, group, rate = links.kind, links.array_bytes, links.group, links.bytes_per_s
        return min(
            hierarchical_s(kind, size, group, steps, rate, links.node.measured_s)
            for steps in steps_of(entry, links.step_s)
        )


def hierarchical_s(
    kind: str,
    array_bytes: float,
    group: Group,
    steps: Steps,
    bytes_per_s: float,
    inside_s: Callable[[str], float],
) -> float:
    """Time of a hierarchical collective: one inside each node, one across nodes, in sequence.

    Across nodes, each rank forms a ring with its peers on the other nodes, over its part of the
    array. An all-reduce is a reduce-scatter inside, an all-reduce across and an all-gather inside
    (2D all-reduce; Mikami et al. 2018). An all-gather runs across first, then inside; a
    reduce-scatter runs inside first, then across.

    Args:
        kind: all-reduce, all-gather or reduce-scatter.
        array_bytes: size of the whole array.
        group: the ranks, spread evenly over their nodes.
        steps: latencies of the rings across nodes.
        bytes_per_s: bandwidth out of a node, shared by all its rings.
        inside_s: maps a kind to the time of that collective among a node's ranks, on the whole
            array.
    """
    inside = (REDUCE_SCATTER, ALL_GATHER) if kind == ALL_REDUCE else (kind,)
    peers = Group(group.axes, group.num_nodes, 1)
    part_bytes = array_bytes / group.ranks_per_node
    share_bytes_per_s = bytes_per_s / group.ranks_per_node
    across_s = ring_over_nodes_s(kind, part_bytes, peers, steps, share_bytes_per_s)
    return across_s + sum(map(inside_s, inside))


class SwitchReduction(Strict):
    """All-reduces performed in the NVLink switch (NVLink SHARP, NCCL's NVLS and NVLSTree).

    `latency` is the latency inside a node. `efficiency` is the reached fraction of a GPU's NVLink
    in nodes with more GPUs than any measured all-reduce. Smaller nodes do not need it: the measured
    curve already includes the algorithm that NCCL chose.
    """

    latency: Entry[NonNegativeSeconds]
    efficiency: Entry[Fraction] | None = None


class Switch(CollectiveAlgorithm):
    """The switch adds and multicasts inside each node; trees join the nodes."""

    name = "switch"
    kinds = (ALL_REDUCE,)

    def in_node_s(self, entry: SwitchReduction, links: NodeLinks) -> float | None:
        rate = _bytes_per_s(entry, links)
        if rate is None:
            return None
        return switch_s(links.array_bytes, links.num_ranks, entry.latency.value, rate)

    def across_nodes_s(self, entry: SwitchReduction, links: NetworkLinks) -> float | None:
        """Return the time of NVLSTree: chunks are pipelined, so that the slower level sets it.

        The latency is NCCL's: a node's latency once, plus 2 log2(nodes) network steps.
        """
        if links.group.ranks_per_node == 1:
            return None
        num_nodes = links.group.num_nodes
        latency_s = entry.latency.value + 2 * math.ceil(math.log2(num_nodes)) * links.step_s
        across_s = tree_bytes(links.array_bytes, num_nodes) / links.bytes_per_s
        return latency_s + max(_without_latency_s(entry, links.node), across_s)


def _bytes_per_s(entry: SwitchReduction, links: NodeLinks) -> float | None:
    """Bandwidth of a switch's all-reduce per GPU; None if nodes of this size were measured."""
    if entry.efficiency is None or links.num_ranks <= links.most_ranks_measured:
        return None
    return links.bytes_per_s * entry.efficiency.value


def _without_latency_s(entry: SwitchReduction, links: NodeLinks) -> float:
    """An all-reduce of the ranks on one node without its latency, as measured or by the switch."""
    rate = _bytes_per_s(entry, links)
    if rate is not None:
        return switch_s(links.array_bytes, links.num_ranks, 0.0, rate)
    return links.measured_s(ALL_REDUCE) - links.all_reduce_latency_s


def switch_s(
    array_bytes: float, num_ranks: int, latency_s: float, link_bytes_per_s: float
) -> float:
    """Time of an all-reduce inside a node, reduced in the NVLink switch (NVLink SHARP, NVLS).

    Each GPU sends the array once, which the switch adds, and its 1/n of the sum once, which the
    switch multicasts: (n + 1)/n of the array in all, about half of a ring's 2 (n - 1)/n.
    """
    return latency_s + (num_ranks + 1) * array_bytes / num_ranks / link_bytes_per_s


FALLBACK = Ring()
"""The algorithm of collectives that the chosen one cannot perform, as in NCCL."""
ALGORITHMS: dict[str, CollectiveAlgorithm] = {
    algorithm.name: algorithm for algorithm in (FALLBACK, Tree(), Hierarchical(), Switch())
}
"""The algorithms by name, in the order of their entries in profiles."""
AUTO = "auto"


class Collectives(Strict):
    """The algorithms available to collectives across nodes, and how one is chosen.

    An algorithm without an entry is not available, except `ring`, which by default takes
    `inter_node.step_latency` at every step. `algorithm` is one of:

    - auto: the fastest; also the default;
    - a name: every collective that supports it uses it, the others use a ring, as in NCCL.
    """

    algorithm: Entry[Literal["auto", "ring", "tree", "hierarchical", "switch"]] | None = None
    ring: Protocols | None = None
    tree: Protocols | None = None
    hierarchical: Protocols | None = None
    switch: SwitchReduction | None = None

    @property
    def choice(self) -> str:
        return self.algorithm.value if self.algorithm else AUTO

    @model_validator(mode="after")
    def _available(self) -> Self:
        if not self.model_fields_set:
            fix = f"add an entry such as collectives.{FALLBACK.name}, or leave it out"
            raise FieldError((), "names no algorithm", fix)
        choice = self.choice
        if choice in (AUTO, FALLBACK.name) or getattr(self, choice):
            return self
        raise FieldError(
            ("algorithm", "value"),
            f"{choice} needs the entry collectives.{choice}, which is missing",
            f"add collectives.{choice}, or write {AUTO} or {FALLBACK.name}",
        )


def available(section: Collectives | None) -> Iterator[tuple[CollectiveAlgorithm, Any]]:
    """Yield the algorithms of a profile's section, or of none, with their entries."""
    for name, algorithm in ALGORITHMS.items():
        entry = None if section is None else getattr(section, name)
        if entry is not None or algorithm is FALLBACK:
            yield algorithm, entry
