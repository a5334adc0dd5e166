"""Time of an exchange of tokens by a dispatcher's kernels, and what it takes from other kernels."""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.hardware.sections import DispatchKernels

_ROW_BYTES = 2 * 7168
"""Bytes of the rows for which profiles have the fractions that kernels reach."""


def exchange_s(
    kernels: DispatchKernels,
    num_ranks: int,
    node: tuple[int, float, float, float],
    network: tuple[float, float],
    exits: Iterable[tuple[int, float]],
) -> float:
    """Time of an exchange in which each token crosses a link once.

    Tokens are pipelined through NVLink and network, so the slower of the two sets the time: the
    larger of bytes over bandwidth, each after its latency.

    Args:
        kernels: fractions of the links that the kernels reach.
        num_ranks: ranks of the group.
        node: rows that each rank receives over NVLink, those of its own tokens included, their
            bytes, the bandwidth of NVLink, and its latency.
        network: bytes that each rank sends to nodes, its own node included, and the latency.
        exits: for the node and each wider level that the group spans, the ranks inside it and one
            rank's bandwidth out of it; none if all ranks share a node.
    """
    rows, node_bytes, node_bytes_per_s, node_latency_s = node
    # A part of a row's time is that of a row of _ROW_BYTES, whatever its own bytes.
    share = kernels.row_share.value if kernels.row_share else 0.0
    node_bytes = (1 - share) * node_bytes + share * rows * _ROW_BYTES
    network_bytes, network_latency_s = network
    inside_s = node_latency_s + node_bytes / (node_bytes_per_s * kernels.node_efficiency.value)
    reached = kernels.network_efficiency.value
    leaving_s = (
        network_latency_s + (num_ranks - inside) * network_bytes / (num_ranks * rate * reached)
        for inside, rate in exits
    )
    return max((inside_s, *leaving_s))


def device_share(kernels: DispatchKernels, num_sms: int) -> float:
    """Load of the kernels on a GPU with `num_sms` multiprocessors.

    Concurrent kernels keep the multiprocessors that are left: a load of l slows them down to
    1/(1 + l) (`Overlap`), which is the fraction that is left.
    """
    taken = min(kernels.num_sms.value, num_sms - 1)
    return taken / (num_sms - taken)
