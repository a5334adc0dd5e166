"""NCCL's algorithms of collectives: rings, trees, one inside and one across nodes, the switch.

Sources: Patarasuk and Yuan 2009 (rings); Sanders, Speck and Träff 2009 and NCCL 2.4 (double binary
trees); NVLink SHARP, NCCL's NVLS and NVLSTree (the switch).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from simtrain.base.entry import Entry, Fraction, Strict
from simtrain.base.mesh import Group
from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms.algorithm import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    CollectiveAlgorithm,
    NetworkLinks,
    NodeLinks,
    Protocols,
    SteppedAlgorithm,
    Steps,
    steps_of,
)
from simtrain.units import NonNegativeSeconds


class Ring(SteppedAlgorithm[Protocols | None]):
    """One ring over all ranks, which enters and leaves each node once.

    Without an entry, every step takes the network's latency. Inside a node, the measured curves
    have the time of the library's choice, which is listed as a ring.
    """

    name = "ring"
    needs_entry = False

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


class Tree(SteppedAlgorithm[Protocols]):
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


class Hierarchical(SteppedAlgorithm[Protocols]):
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


class Switch(CollectiveAlgorithm[SwitchReduction]):
    """The switch adds and multicasts inside each node; trees join the nodes."""

    name = "switch"
    kinds = (ALL_REDUCE,)
    entry_type = SwitchReduction
    node_latencies = ("latency",)
    limits_node_links = True

    def in_node_s(self, entry: SwitchReduction, links: NodeLinks) -> float | None:
        rate = _bytes_per_s(entry, links)
        if rate is None:
            return None
        return switch_s(links.array_bytes, links.num_ranks, entry.latency.value, rate)

    def across_nodes_s(self, entry: SwitchReduction, links: NetworkLinks) -> float | None:
        if links.group.ranks_per_node == 1:
            return None
        return switch_tree_s(
            links.array_bytes,
            links.group.num_nodes,
            entry.latency.value,
            links.step_s,
            links.bytes_per_s,
            _without_latency_s(entry, links.node),
        )

    def check(self, entry: SwitchReduction, most_ranks_measured: int, nvlink_gpus: int) -> None:
        if entry.efficiency is None or nvlink_gpus > most_ranks_measured:
            return
        raise FieldError(
            ("collectives", self.name, "efficiency", "value"),
            f"no node has more GPUs ({nvlink_gpus}) than the largest measured all_reduce "
            f"({most_ranks_measured} ranks), whose curve already includes NCCL's choice",
            "remove efficiency, or add cluster.gpus_per_nvlink_domain",
        )


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


def most_of_link(num_ranks: int) -> float:
    """The largest bus bandwidth of an all-reduce inside a node, as a fraction of a GPU's link.

    nccl-tests counts the bytes of a ring, 2 (n - 1)/n of the array, whatever the algorithm
    (PERFORMANCE.md of NVIDIA/nccl-tests). The switch needs only (n + 1)/n (`switch_s`), so the
    count can be 2 (n - 1)/(n + 1) of the link, 1.56 for 8 GPUs; a ring reaches 1.
    """
    return max(1.0, 2 * (num_ranks - 1) / (num_ranks + 1))


def switch_tree_s(
    array_bytes: float,
    num_nodes: int,
    latency_s: float,
    network_step_s: float,
    bytes_per_s: float,
    node_bytes_s: float,
) -> float:
    """Time of an all-reduce by the switch in each node and by trees across nodes (NVLSTree).

    Chunks of the array are pipelined through both levels, so the slower level sets the time. The
    latency is NCCL's: a node's latency once, plus 2 log2(nodes) network steps.

    Args:
        array_bytes: size of the array.
        num_nodes: nodes of the group.
        latency_s: latency inside a node.
        network_step_s: latency of a step between nodes.
        bytes_per_s: the group's bandwidth out of a node.
        node_bytes_s: time of the all-reduce inside a node, without its latency.
    """
    depth = math.ceil(math.log2(num_nodes))
    across_s = tree_bytes(array_bytes, num_nodes) / bytes_per_s
    return latency_s + 2 * depth * network_step_s + max(node_bytes_s, across_s)
