"""Time of collectives and transfers from their bytes and the links that they cross.

Inside a node, a collective takes a latency plus a ring's wire bytes over the link's bandwidth times
an efficiency. The efficiency comes from a measured curve over array sizes, which includes the
library's choice of algorithm. Across nodes, the fastest of the closed forms in `algorithms` is
used; a profile without a section `collectives` has only rings, every step of which crosses the
network. All groups of the job are assumed to communicate at the same time: ranks share the adapters
of their node and the uplinks of each wider level.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial

from simtrain.base.mesh import Group
from simtrain.durations.algorithms import (
    Steps,
    all_to_all_s,
    hierarchical_s,
    ring_bytes,
    ring_over_nodes_s,
    ring_passes,
    switch_s,
    switch_tree_s,
    tree_s,
)
from simtrain.hardware.algorithms import Protocols, SwitchReduction
from simtrain.hardware.links import CollectiveCurve, Curves
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.ops import Op
from simtrain.workload.work import Collective, CollectiveKind


def wire_bytes(op: Collective) -> float:
    """Bytes that each rank sends: (n-1)/n of the array, twice that for an all-reduce.

    These are a ring's bytes; an all-to-all also sends (n-1)/n. A transfer sends the whole array.
    """
    if op.kind.is_transfer:
        return op.array_bytes
    return ring_bytes(op.kind, op.array_bytes, op.group.num_ranks)


def total_wire_bytes(ops: Iterable[Op], *, include_extra: bool = True) -> float:
    """Sum of the bytes that each rank sends; without extra ops, the paper's Table 2."""
    return math.fsum(
        wire_bytes(op.work)
        for op in ops
        if isinstance(op.work, Collective) and (include_extra or not op.is_extra)
    )


def collective_seconds(op: Collective, profile: HardwareProfile) -> float:
    """Time of one collective run alone; 0 for a group of one rank."""
    group = op.group
    if group.num_ranks == 1:
        return 0.0
    if op.kind.is_transfer:
        crossed = _levels_left(group)
        return transfer_seconds(op.array_bytes, crossed, num_sharing=1, profile=profile)
    if group.inside_one_node:
        return _chosen(op, profile, _in_node(op, profile))
    if op.kind is CollectiveKind.ALL_TO_ALL:
        return _all_to_all_seconds(op, profile)
    return _chosen(op, profile, _across_nodes(op, profile))


def collective_is_extrapolated(op: Collective, profile: HardwareProfile) -> bool:
    """Whether the array size or the group is outside the measured curves.

    True for every group across nodes, and for an all-to-all if the profile has no curve for it.
    """
    group = op.group
    if not group.inside_one_node:
        return True
    if group.num_ranks == 1 or op.kind.is_transfer:
        return False
    if op.kind is CollectiveKind.ALL_TO_ALL and not _has_all_to_all(profile):
        return True
    curves = _curves(op.kind, profile).value
    curve = next((c for c in curves if c.num_ranks == group.num_ranks), None)
    return curve is None or op.array_bytes > curve.array_bytes[-1]


def transfer_seconds(
    num_bytes: float, levels_crossed: int, *, num_sharing: int, profile: HardwareProfile
) -> float:
    """Time to send `num_bytes` from one GPU to another.

    Args:
        num_bytes: size of the message.
        levels_crossed: 0 inside a node, 1 between nodes, more across wider levels, whose uplinks
            all GPUs below are assumed to use at once (`Mesh.levels_crossed`).
        num_sharing: number of transfers that share the GPU's link, this one included.
        profile: the hardware profile.
    """
    if levels_crossed == 0:
        link = profile.links.point_to_point
        bandwidth = profile.links.bandwidth.value
    else:
        link = profile.network.point_to_point
        bandwidth = profile.adapter_share_bytes_per_s
        uplinks = profile.cluster.oversubscriptions[: levels_crossed - 1]
        bandwidth /= max(uplinks, default=1.0)
    return link.latency.value + num_sharing * num_bytes / (bandwidth * link.efficiency.value)


def device_load(op: Collective, seconds: float, profile: HardwareProfile) -> float:
    """Share of the GPU that a collective uses while it runs alone for `seconds`, from 0 to 1.

    Inside a node the share is the profile's slowdown: concurrent kernels run at 1/(1 + slowdown) of
    their speed. A collective limited by the network moves the same bytes through the GPU's memory
    and multiprocessors in more time, so its share is smaller in proportion. Copy engines use no
    multiprocessors and little memory bandwidth: 0.
    """
    if op.kind is CollectiveKind.COPY:
        return 0.0
    slowdown = profile.overlap.slowdown.value
    if op.group.inside_one_node or profile.intra_node is None:
        return slowdown
    if op.kind.is_transfer:
        at_full_speed_s = transfer_seconds(op.array_bytes, 0, num_sharing=1, profile=profile)
    else:
        at_full_speed_s = _intra_node_seconds(op, profile.cluster.nvlink_gpus, profile)
    return slowdown * min(1.0, at_full_speed_s / seconds)


def _levels_left(group: Group) -> int:
    """Number of levels (node, leaf, …) that the group spans more than one unit of."""
    shared = (group.ranks_per_node, *group.ranks_per_level)
    return sum(ranks < group.num_ranks for ranks in shared)


def _chosen(op: Collective, profile: HardwareProfile, seconds: dict[str, float]) -> float:
    """Time of the profile's chosen algorithm: the fastest by default, a ring if unavailable."""
    table = profile.collectives
    choice = "ring" if table is None else table.choice(op.kind.value, op.array_bytes)
    return min(seconds.values()) if choice == "auto" else seconds.get(choice, seconds["ring"])


def _in_node(op: Collective, profile: HardwareProfile) -> dict[str, float]:
    """Time by algorithm inside a node: the measured curve, and the switch in larger nodes."""
    num_ranks, table = op.group.num_ranks, profile.collectives
    seconds = {"ring": _intra_node_seconds(op, num_ranks, profile)}
    if op.kind is CollectiveKind.ALL_REDUCE and table and table.switch:
        reached = _switch_bytes_per_s(table.switch, num_ranks, profile)
        if reached is not None:
            latency_s = table.switch.latency.value
            seconds["switch"] = switch_s(op.array_bytes, num_ranks, latency_s, reached)
    return seconds


def _across_nodes(op: Collective, profile: HardwareProfile) -> dict[str, float]:
    """Time by algorithm for a group on several nodes."""
    kind, size, group, table = op.kind, op.array_bytes, op.group, profile.collectives
    inside_s = _intra_node_seconds(op, group.ranks_per_node, profile)
    rate, step_s = _rate_out_of_a_node(group, profile), profile.network.step_latency.value
    if table is None or table.ring is None:
        seconds = {"ring": max(inside_s, network_seconds(op, step_s, rate))}
    else:
        rings_s = (
            ring_over_nodes_s(kind, size, group, one, rate) for one in _steps(table.ring, step_s)
        )
        seconds = {"ring": max(inside_s, min(rings_s))}
    if table is None:
        return seconds
    if table.hierarchical and group.ranks_per_node > 1:
        seconds["hierarchical"] = min(
            hierarchical_s(kind, size, group, one, rate, partial(_of_a_node, op, profile))
            for one in _steps(table.hierarchical, step_s)
        )
    if kind is not CollectiveKind.ALL_REDUCE:
        return seconds
    if table.tree:
        trees_s = (tree_s(size, group, one, rate) for one in _steps(table.tree, step_s))
        seconds["tree"] = max(inside_s, min(trees_s))
    if table.switch and group.ranks_per_node > 1:
        node_s = _switch_node_bytes_s(op, table.switch, profile)
        latency_s = table.switch.latency.value
        seconds["switch"] = switch_tree_s(size, group.num_nodes, latency_s, step_s, rate, node_s)
    return seconds


def _steps(protocols: Protocols, step_latency_s: float) -> list[Steps]:
    """The latencies of each protocol of an algorithm."""
    return [
        Steps(
            one.base_latency,
            one.node_step,
            step_latency_s if one.network_step is None else one.network_step,
            one.efficiency,
        )
        for one in protocols.value
    ]


def _of_a_node(op: Collective, profile: HardwareProfile, kind: CollectiveKind) -> float:
    """Time of a collective of another kind on the same array, among the ranks of one node."""
    num_ranks = op.group.ranks_per_node
    one_node = Group(op.group.axes, num_ranks, num_ranks)
    return _intra_node_seconds(Collective(kind, op.array_bytes, one_node), num_ranks, profile)


def _switch_bytes_per_s(
    switch: SwitchReduction, num_ranks: int, profile: HardwareProfile
) -> float | None:
    """Bandwidth of a switch's all-reduce per GPU; None if nodes of this size were measured."""
    if switch.efficiency is None or num_ranks <= profile.links.all_reduce.value[-1].num_ranks:
        return None
    return _link_bytes_per_s(profile) * switch.efficiency.value


def _switch_node_bytes_s(
    op: Collective, switch: SwitchReduction, profile: HardwareProfile
) -> float:
    """An all-reduce of the ranks on one node without its latency, as measured or by the switch."""
    num_ranks = op.group.ranks_per_node
    reached = _switch_bytes_per_s(switch, num_ranks, profile)
    if reached is not None:
        return switch_s(op.array_bytes, num_ranks, 0.0, reached)
    latency_s = curve_for(profile.links.all_reduce.value, num_ranks).latency
    return _of_a_node(op, profile, CollectiveKind.ALL_REDUCE) - latency_s


def _all_to_all_seconds(op: Collective, profile: HardwareProfile) -> float:
    """Time of an all-to-all over several nodes, with an equal share of links for each rank."""
    group, efficiency = op.group, _network_efficiency(op.group, profile)
    rate = profile.adapter_share_bytes_per_s * efficiency
    exits = [(group.ranks_per_node, rate)]
    exits += [(ranks, rate / times) for ranks, times in _uplinks(group, profile)]
    latency_s = profile.network.point_to_point.latency.value
    inside_s = _of_a_node(op, profile, op.kind)
    return all_to_all_s(op.array_bytes, group.num_ranks, latency_s, exits, inside_s)


def _has_all_to_all(profile: HardwareProfile) -> bool:
    return profile.intra_node is not None and profile.intra_node.all_to_all is not None


def _rate_out_of_a_node(group: Group, profile: HardwareProfile) -> float:
    """Bandwidth, in bytes/s, of a group's ranks on one node to the next node.

    If the group spans a wider level, its ranks there share the uplinks in proportion. Rings and
    trees cross an uplink as often as they leave a node, so a group with several nodes below the
    uplinks needs less than its share.
    """
    ranks_per_node = group.ranks_per_node
    bandwidth = ranks_per_node * profile.adapter_share_bytes_per_s
    rate = bandwidth * _network_efficiency(group, profile)
    shares = (ranks / (ranks_per_node * times) for ranks, times in _uplinks(group, profile))
    return rate * min((1.0, *shares))


def _network_efficiency(group: Group, profile: HardwareProfile) -> float:
    alone = group.ranks_per_node == profile.cluster.nvlink_gpus
    network = profile.network
    return (network.whole_node_efficiency if alone else network.concurrent_efficiency).value


def _uplinks(group: Group, profile: HardwareProfile) -> list[tuple[int, float]]:
    """The group's ranks below an uplink and the oversubscription, per wider level it spans."""
    # strict: a mesh built without the profile's levels would silently ignore them.
    levels = zip(group.ranks_per_level, profile.cluster.oversubscriptions, strict=True)
    return [(ranks, times) for ranks, times in levels if ranks < group.num_ranks]


def _link_bytes_per_s(profile: HardwareProfile) -> float:
    links = profile.links
    return links.bandwidth.value * links.in_situ_speed.value


def _intra_node_seconds(op: Collective, num_ranks: int, profile: HardwareProfile) -> float:
    """Time of a ring with all the array's wire bytes among `num_ranks` GPUs of a node."""
    if num_ranks == 1:
        return 0.0
    curve = curve_for(_curves(op.kind, profile).value, num_ranks)
    return ring_seconds(op, curve, _link_bytes_per_s(profile))


def ring_seconds(op: Collective, curve: CollectiveCurve, bandwidth_bytes_per_s: float) -> float:
    """Time of a measured ring: latency, plus wire bytes over the curve's fraction of the link."""
    reached = bandwidth_bytes_per_s * _efficiency(curve, op.array_bytes)
    return curve.latency + wire_bytes(op) / reached


def network_seconds(op: Collective, step_latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Time of a ring whose every step crosses the network."""
    latency_s = ring_passes(op.kind) * (op.group.num_ranks - 1) * step_latency_s
    return latency_s + wire_bytes(op) / bandwidth_bytes_per_s


def _curves(kind: CollectiveKind, profile: HardwareProfile) -> Curves:
    return {
        CollectiveKind.ALL_REDUCE: profile.links.all_reduce,
        CollectiveKind.ALL_GATHER: profile.links.all_gather,
        CollectiveKind.REDUCE_SCATTER: profile.links.reduce_scatter,
        # Fallback: a reduce-scatter sends as many bytes per rank in as many messages.
        CollectiveKind.ALL_TO_ALL: profile.links.all_to_all or profile.links.reduce_scatter,
    }[kind]


def curve_for(curves: Sequence[CollectiveCurve], num_ranks: int) -> CollectiveCurve:
    """The curve of the smallest measured group with at least `num_ranks`, or of the largest."""
    enough = (curve for curve in curves if curve.num_ranks >= num_ranks)
    return next(enough, curves[-1])


def _efficiency(curve: CollectiveCurve, array_bytes: float) -> float:
    """Fraction of the link at an array size: power law between measured sizes, constant outside."""
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
