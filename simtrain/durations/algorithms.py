"""Closed forms for the time of collectives across nodes, one function per algorithm.

NCCL estimates latency plus bytes over bandwidth for each algorithm and protocol and takes the
fastest (graph/tuning.cc, ncclTopoTuneModel). These forms have the same terms: a base latency, steps
between GPUs of a node, steps between nodes, and the bytes that leave a node.

All groups of the job are assumed to communicate at the same time, so the parameter `bytes_per_s` is
a group's share of the bandwidth out of a node, in proportion to its ranks on that node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simtrain.base.mesh import Group
from simtrain.workload.work import CollectiveKind


@dataclass(frozen=True, slots=True)
class Steps:
    """A protocol's latencies (base, per step in a node, per step between nodes) and efficiency."""

    base_s: float
    node_s: float
    network_s: float
    efficiency: float = 1.0


def ring_passes(kind: CollectiveKind) -> int:
    """Passes around the ring: 2 for an all-reduce (reduce-scatter, then all-gather), else 1."""
    return 2 if kind is CollectiveKind.ALL_REDUCE else 1


def ring_bytes(kind: CollectiveKind, array_bytes: float, num_ranks: int) -> float:
    """Bytes that each rank sends around a ring (Patarasuk and Yuan 2009)."""
    return ring_passes(kind) * (num_ranks - 1) * array_bytes / num_ranks


def ring_over_nodes_s(
    kind: CollectiveKind, array_bytes: float, group: Group, steps: Steps, bytes_per_s: float
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


def tree_bytes(array_bytes: float, num_nodes: int) -> float:
    """Bytes that leave a node in an all-reduce over two binary trees, each with half the array.

    An inner node of one tree is a leaf of the other (Sanders, Speck and Träff 2009; NCCL 2.4): a
    node sends half the array to its parent in each tree, and half to each of its two children on
    the way down. With two nodes, each is the other's parent in one tree and sends the array once.
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


def hierarchical_s(
    kind: CollectiveKind,
    array_bytes: float,
    group: Group,
    steps: Steps,
    bytes_per_s: float,
    inside_s: Callable[[CollectiveKind], float],
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
    both = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER
    inside = both if kind is CollectiveKind.ALL_REDUCE else (kind,)
    peers = Group(group.axes, group.num_nodes, 1)
    part_bytes = array_bytes / group.ranks_per_node
    share_bytes_per_s = bytes_per_s / group.ranks_per_node
    across_s = ring_over_nodes_s(kind, part_bytes, peers, steps, share_bytes_per_s)
    return across_s + sum(map(inside_s, inside))


def switch_s(
    array_bytes: float, num_ranks: int, latency_s: float, link_bytes_per_s: float
) -> float:
    """Time of an all-reduce inside a node, reduced in the NVLink switch (NVLink SHARP, NVLS).

    Each GPU sends the array once, which the switch adds, and its 1/n of the sum once, which the
    switch multicasts: (n + 1)/n of the array in all, about half of a ring's 2 (n - 1)/n.
    """
    return latency_s + (num_ranks + 1) * array_bytes / num_ranks / link_bytes_per_s


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


def all_to_all_s(
    array_bytes: float,
    num_ranks: int,
    latency_s: float,
    exits: Iterable[tuple[int, float]],
    inside_s: float,
) -> float:
    """Time of an all-to-all: each rank sends 1/n of its array to every rank, all at once.

    Each rank sends (n - ranks inside)/n of its array out of its node, and out of each wider level,
    over its own share of the links. NVLink carries the rest at the same time. The slowest level
    sets the time.

    Args:
        array_bytes: array of each rank.
        num_ranks: ranks of the group.
        latency_s: latency of a transfer between nodes, paid once.
        exits: for the node and each wider level that the group spans, the ranks inside it and one
            rank's bandwidth out of it in bytes/s.
        inside_s: time of the part that stays inside a node.
    """
    leaving_s = ((num_ranks - inside) * array_bytes / num_ranks / rate for inside, rate in exits)
    return max(inside_s, latency_s + max(leaving_s))
