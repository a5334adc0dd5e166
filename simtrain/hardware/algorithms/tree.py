"""Double binary trees of nodes (Sanders, Speck and Träff 2009; NCCL 2.4)."""

from __future__ import annotations

import math

from simtrain.base.mesh import Group
from simtrain.hardware.algorithms.algorithm import (
    ALL_REDUCE,
    NetworkLinks,
    Protocols,
    SteppedAlgorithm,
    Steps,
    steps_of,
)


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
