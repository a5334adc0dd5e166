"""Closed forms of collectives whose group lies on several nodes, an algorithm each.

NCCL chooses by a model of latency plus bytes over bandwidth for each algorithm and protocol
(graph/tuning.cc, ncclTopoTuneModel), and takes the smallest estimate. These forms have its terms:
what starts a collective, steps between the GPUs of a node, steps between nodes, and bytes that
leave a node.

Ranks of all groups communicate at the same time. A group has, of the bandwidth out of a node, the
share of its ranks there: `bytes_per_s`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simtrain.mesh import Group
from simtrain.workload.work import CollectiveKind


@dataclass(frozen=True, slots=True)
class Steps:
    """What a protocol's steps take, and the fraction of the bandwidth that it reaches."""

    base_s: float
    node_s: float
    network_s: float
    efficiency: float = 1.0


def ring_passes(kind: CollectiveKind) -> int:
    """How often an array goes around a ring: an all-reduce scatters, then gathers."""
    return 2 if kind is CollectiveKind.ALL_REDUCE else 1


def ring_bytes(kind: CollectiveKind, array_bytes: float, num_ranks: int) -> float:
    """Bytes that each rank sends around a ring (Patarasuk and Yuan 2009)."""
    return ring_passes(kind) * (num_ranks - 1) * array_bytes / num_ranks


def ring_over_nodes_s(
    kind: CollectiveKind, array_bytes: float, group: Group, steps: Steps, bytes_per_s: float
) -> float:
    """A ring that enters and leaves each node once, so that few of its steps cross the network.

    Of the n - 1 steps of a pass over k nodes, k - 1 do (nInterSteps in NCCL's model).
    """
    passes = ring_passes(kind)
    over_network = passes * (group.num_nodes - 1)
    inside = passes * (group.num_ranks - 1) - over_network
    latency_s = steps.base_s + inside * steps.node_s + over_network * steps.network_s
    wire_bytes = ring_bytes(kind, array_bytes, group.num_ranks)
    return latency_s + wire_bytes / (bytes_per_s * steps.efficiency)


def tree_bytes(array_bytes: float, num_nodes: int) -> float:
    """Bytes that leave a node in an all-reduce over two binary trees, half of the array on each.

    A node that is inside one tree is a leaf of the other (Sanders, Speck and Träff 2009; NCCL 2.4):
    half of the array goes to each of the two parents and, back down, to each of two children. Two
    nodes are parent and child in one tree, and child and parent in the other.
    """
    return array_bytes if num_nodes == 2 else 2 * array_bytes


def tree_s(array_bytes: float, group: Group, steps: Steps, bytes_per_s: float) -> float:
    """An all-reduce up and down trees of nodes, with a chain of the group's GPUs in each node.

    The latency is NCCL's: 2 ((ranks of a node - 1) steps inside + log2(nodes) between nodes).
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
    """A collective inside each node and one across nodes, one after the other.

    Across nodes, each rank of a node has a ring of its own with its peers on the other nodes, over
    its part of the array: an all-reduce is a reduce-scatter inside, an all-reduce across and an
    all-gather inside (2D all-reduce; Mikami et al. 2018). An all-gather across comes before one
    inside, a reduce-scatter across after one inside.

    Args:
        kind, array_bytes: the collective; no all-to-all.
        group: with its ranks evenly on its nodes.
        steps, bytes_per_s: of the rings across nodes; all rings of a node together.
        inside_s: seconds of a collective over the whole array by the ranks of a node.
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
    """An all-reduce inside a node that the NVLink switch adds up (NVLink SHARP, NCCL's NVLS).

    Each GPU sends the array once for the switch to add, and its n-th of the sum once for the switch
    to spread: (n + 1)/n of the array, about half of a ring's 2 (n - 1)/n.
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
    """An all-reduce that the switch of each node adds up and trees of nodes finish (NVLSTree).

    Chunks of the array are on all levels at the same time, so that the slower of node and network
    decides. The latency is NCCL's: once that of a node, 2 log2(nodes) steps of the network.

    Args:
        node_bytes_s: seconds of an all-reduce inside a node, without its latency.
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
    """An all-to-all: each rank sends an n-th of its array to every rank, all at the same time.

    No rank passes on what is not its own, so all that goes to ranks outside of a node (or of a
    wider level), (n - ranks inside)/n of the array, takes a rank's own share of the links out of
    it. What stays inside a node takes NVLink meanwhile, and the slowest of all decides.

    Args:
        array_bytes: what each rank starts from.
        latency_s: of a transfer between nodes; all of them are under way at once.
        exits: for a node and each wider level that the group leaves, the ranks inside and the
            bytes per second at which one rank sends out.
        inside_s: seconds of the same array among the ranks of a node.
    """
    leaving_s = ((num_ranks - inside) * array_bytes / num_ranks / rate for inside, rate in exits)
    return max(inside_s, latency_s + max(leaving_s))
