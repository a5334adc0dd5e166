"""All-reduces in the NVLink switch (NVLink SHARP; NCCL's NVLS and NVLSTree)."""

from __future__ import annotations

import math

from simtrain.base.entry import Entry, Fraction, Strict
from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms.algorithm import (
    ALL_REDUCE,
    CollectiveAlgorithm,
    NetworkLinks,
    NodeLinks,
)
from simtrain.hardware.algorithms.tree import tree_bytes
from simtrain.units import NonNegativeSeconds


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
