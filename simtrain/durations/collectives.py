"""Time of collectives and transfers from their bytes and from the links that they cross.

Inside a node a ring's time is a latency plus its wire bytes over the fraction of the link that a
measured curve gives for the array's size. Across nodes every step of the ring waits for the
slowest link, which is the network: each node's adapters are shared by the ranks on it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from simtrain.hardware.links import CollectiveCurve, Curves
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.ops import Op
from simtrain.workload.work import Collective, CollectiveKind


def wire_bytes(op: Collective) -> float:
    """Bytes that each rank sends around a ring: (n-1)/n of the array, twice to all-reduce.

    An all-to-all sends as much, and a transfer all of it.
    """
    if op.kind is CollectiveKind.SEND:
        return op.array_bytes
    passes = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1
    return passes * (op.group.num_ranks - 1) * op.array_bytes / op.group.num_ranks


def total_wire_bytes(ops: Iterable[Op], *, include_extra: bool = True) -> float:
    """Sum of the bytes each rank sends; without extra ops it is the column of Table 2."""
    return math.fsum(
        wire_bytes(op.work)
        for op in ops
        if isinstance(op.work, Collective) and (include_extra or not op.is_extra)
    )


def collective_seconds(op: Collective, profile: HardwareProfile) -> float:
    """Seconds of one collective; a group of one has nothing to do."""
    group = op.group
    if group.num_ranks == 1:
        return 0.0
    if op.kind is CollectiveKind.SEND:
        same_node = group.inside_one_node
        return transfer_seconds(op.array_bytes, same_node=same_node, num_sharing=1, profile=profile)
    inside_s = _intra_node_seconds(op, min(group.ranks_per_node, group.num_ranks), profile)
    if group.inside_one_node:
        return inside_s
    return max(inside_s, _inter_node_seconds(op, profile))


def collective_is_extrapolated(op: Collective, profile: HardwareProfile) -> bool:
    """Whether size or group lie outside the measured curves.

    All groups across nodes do, and all-to-alls, which have no curve of their own.
    """
    group = op.group
    if not group.inside_one_node:
        return True
    if group.num_ranks == 1 or op.kind is CollectiveKind.SEND:
        return False
    if op.kind is CollectiveKind.ALL_TO_ALL:
        return True
    curves = _curves(op.kind, profile).value
    curve = next((c for c in curves if c.num_ranks == group.num_ranks), None)
    return curve is None or op.array_bytes > curve.array_bytes[-1]


def transfer_seconds(
    num_bytes: float, *, same_node: bool, num_sharing: int, profile: HardwareProfile
) -> float:
    """Seconds to send `num_bytes` from one GPU to another, `num_sharing` at a time on its link."""
    if same_node:
        link = profile.links.point_to_point
        bandwidth = profile.links.bandwidth.value
    else:
        link = profile.network.point_to_point
        bandwidth = profile.adapter_share_bytes_per_s
    return link.latency.value + num_sharing * num_bytes / (bandwidth * link.efficiency.value)


def _intra_node_seconds(op: Collective, num_ranks: int, profile: HardwareProfile) -> float:
    """A ring of all the array's wire bytes over the links of `num_ranks` GPUs in a node."""
    if num_ranks == 1:
        return 0.0
    curve = curve_for(_curves(op.kind, profile).value, num_ranks)
    links = profile.links
    return ring_seconds(op, curve, links.bandwidth.value * links.in_situ_speed.value)


def ring_seconds(op: Collective, curve: CollectiveCurve, bandwidth_bytes_per_s: float) -> float:
    """Latency, plus the ring's wire bytes over the fraction of the link that the curve gives."""
    reached = bandwidth_bytes_per_s * _efficiency(curve, op.array_bytes)
    return curve.latency + wire_bytes(op) / reached


def _inter_node_seconds(op: Collective, profile: HardwareProfile) -> float:
    network, ranks_per_node = profile.network, op.group.ranks_per_node
    bandwidth = ranks_per_node * profile.adapter_share_bytes_per_s
    alone = ranks_per_node == profile.cluster.gpus_per_node.value
    efficiency = network.whole_node_efficiency if alone else network.concurrent_efficiency
    return network_seconds(op, network.step_latency.value, bandwidth * efficiency.value)


def network_seconds(op: Collective, step_latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Every step of the ring waits for the network; its wire bytes leave a node at a bandwidth."""
    passes = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1
    latency_s = passes * (op.group.num_ranks - 1) * step_latency_s
    return latency_s + wire_bytes(op) / bandwidth_bytes_per_s


def _curves(kind: CollectiveKind, profile: HardwareProfile) -> Curves:
    return {
        CollectiveKind.ALL_REDUCE: profile.links.all_reduce,
        CollectiveKind.ALL_GATHER: profile.links.all_gather,
        CollectiveKind.REDUCE_SCATTER: profile.links.reduce_scatter,
        # As many bytes leave each rank, in as many messages.
        CollectiveKind.ALL_TO_ALL: profile.links.reduce_scatter,
    }[kind]


def curve_for(curves: Sequence[CollectiveCurve], num_ranks: int) -> CollectiveCurve:
    """The curve measured with the fewest ranks that are enough, or with the most there are."""
    enough = (curve for curve in curves if curve.num_ranks >= num_ranks)
    return next(enough, curves[-1])


def _efficiency(curve: CollectiveCurve, array_bytes: float) -> float:
    """Fraction of the link at a size: a power law between measured sizes, constant outside."""
    sizes, fractions = curve.array_bytes, curve.efficiency
    place = bisect_left(sizes, array_bytes)
    if place == 0:
        return fractions[0]
    if place == len(sizes):
        return fractions[-1]
    low, high = sizes[place - 1], sizes[place]
    part = math.log(array_bytes / low) / math.log(high / low)
    before, after = math.log(fractions[place - 1]), math.log(fractions[place])
    return math.exp(before + part * (after - before))
