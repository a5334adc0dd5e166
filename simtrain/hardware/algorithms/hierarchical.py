"""Hierarchical collectives: one inside each node, one across nodes, in sequence."""

from __future__ import annotations

from collections.abc import Callable

from simtrain.base.mesh import Group
from simtrain.hardware.algorithms.algorithm import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    NetworkLinks,
    Protocols,
    SteppedAlgorithm,
    Steps,
    steps_of,
)
from simtrain.hardware.algorithms.ring import ring_over_nodes_s


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
