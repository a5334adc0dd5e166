"""Rings: each rank sends to the next one (Patarasuk and Yuan 2009)."""

from __future__ import annotations

from simtrain.base.mesh import Group
from simtrain.hardware.algorithms.algorithm import (
    ALL_REDUCE,
    NetworkLinks,
    NodeLinks,
    Protocols,
    SteppedAlgorithm,
    Steps,
    steps_of,
)


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
