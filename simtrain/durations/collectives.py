"""Time of collectives and transfers from their bytes and the links that they cross.

Inside a node, a collective takes a latency plus a ring's wire bytes over the link's bandwidth times
an efficiency. The efficiency comes from a measured curve over array sizes, which includes the
library's choice of algorithm. Across nodes, the fastest of the algorithms in
`hardware.algorithms` is used; a profile without a section `collectives` has only rings, every step
of which crosses the network. All groups of the job are assumed to communicate at the same time:
ranks share the adapters of their node and the uplinks of each wider level.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from simtrain.base.mesh import Group
from simtrain.hardware.algorithms import FALLBACK, NetworkLinks, NodeLinks, available, ring_bytes
from simtrain.hardware.cluster import CollectiveCurve, Curves, most_fraction
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.sections import DispatchKernels
from simtrain.workload.ops import Op
from simtrain.workload.work import Collective, CollectiveKind, TokenExchange

# Closed form of all-to-alls, which no algorithm forwards: every rank sends to every other one.


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


# Time of an exchange of tokens by a dispatcher's kernels, and what it takes from other kernels.

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


def wire_bytes(op: Collective) -> float:
    """Bytes that each rank sends: (n-1)/n of the array, twice that for an all-reduce.

    These are a ring's bytes; an all-to-all also sends (n-1)/n. Of a broadcast or a reduce it is the
    mean: n - 1 ranks send the array, and roots take turns. A transfer sends the whole array. Of
    an exchange of tokens, these are the bytes over NVLink, each of which crosses it last.
    """
    if op.kind.is_transfer:
        return op.array_bytes
    if isinstance(op, TokenExchange):
        return op.node_bytes * (1 - 1 / op.group.num_ranks)
    return ring_bytes(_RINGS[op.kind], op.array_bytes, op.group.num_ranks)


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
    if isinstance(op, TokenExchange):
        return _exchange_seconds(op, profile)
    if op.kind.is_transfer:
        crossed = _levels_left(group)
        return transfer_seconds(op.array_bytes, crossed, num_sharing=1, profile=profile)
    if op.kind.has_root:
        return _chain_seconds(_ring_of(op), profile)
    if group.inside_one_node:
        return _chosen(op, profile, _in_node(op, profile))
    if op.kind is CollectiveKind.ALL_TO_ALL:
        return _all_to_all_seconds(op, profile)
    return _chosen(op, profile, _across_nodes(op, profile))


def _chain_seconds(op: Collective, profile: HardwareProfile) -> float:
    """Time of a broadcast or a reduce, whose ring is `op`; NCCL has no other algorithm for them."""
    times = (_in_node if op.group.inside_one_node else _across_nodes)(op, profile)
    return times[FALLBACK.name]


def _ring_of(op: Collective) -> Collective:
    """Return the all-gather or reduce-scatter whose ring takes as long as a broadcast or a reduce.

    The array flows through a chain of n ranks in chunks, so each link carries all of it in n - 1
    steps, as in a ring's collective on n/(n - 1) times the array (nccl-tests' PERFORMANCE.md: the
    bus bandwidth of a broadcast counts the whole array).
    """
    if not op.kind.has_root:
        return op
    kind, num_ranks = _RINGS[op.kind], op.group.num_ranks
    return Collective(kind, op.array_bytes * num_ranks // (num_ranks - 1), op.group)


_RINGS = {
    CollectiveKind.ALL_REDUCE: CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER: CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL: CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST: CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE: CollectiveKind.REDUCE_SCATTER,
}
"""For each kind that is no transfer, the ring that sends as many bytes in as many messages."""


def _exchange_seconds(op: TokenExchange, profile: HardwareProfile) -> float:
    """Time of an exchange of tokens by a dispatcher's kernels."""
    group, links = op.group, profile.links
    exits: list[tuple[int, float]] = []
    latency_s = 0.0
    if not group.inside_one_node:
        latency_s = profile.network.point_to_point.latency.value
        rate = profile.adapter_share_bytes_per_s
        exits = [(group.ranks_per_node, rate)]
        exits += [(ranks, rate / times) for ranks, times in _uplinks(group, profile)]
    node = op.node_rows, op.node_bytes, links.bandwidth.value, links.point_to_point.latency.value
    kernels, network = profile.dispatch_kernels(op.dispatcher), (op.network_bytes, latency_s)
    return exchange_s(kernels, group.num_ranks, node, network, exits)


def collective_is_extrapolated(op: Collective, profile: HardwareProfile) -> bool:
    """Whether the array size or the group is outside the measured curves.

    True for every group across nodes, for an all-to-all if the profile has no curve for it, and for
    a broadcast or a reduce.
    """
    group = op.group
    if not group.inside_one_node or op.kind.has_root:
        return True
    if group.num_ranks == 1 or isinstance(op, TokenExchange) or op.kind.is_transfer:
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


def device_load(
    op: Collective, seconds: Callable[[Collective], float], profile: HardwareProfile
) -> float:
    """Share of the GPU that a collective uses while it runs alone for its seconds, from 0 to 1.

    Inside a node the share is the profile's slowdown: concurrent kernels run at 1/(1 + slowdown) of
    their speed. A collective limited by the network moves the same bytes through the GPU's memory
    and multiprocessors in more time, so its share is smaller in proportion. Copy engines use no
    multiprocessors and little memory bandwidth: 0. A dispatcher's kernels hold multiprocessors.
    """
    if op.kind is CollectiveKind.COPY:
        return 0.0
    if isinstance(op, TokenExchange):
        # Others keep the fraction that is left, to which a load of l slows them: 1/(1 + l).
        num_sms = profile.gpu.num_sms.value
        taken = min(profile.dispatch_kernels(op.dispatcher).num_sms.value, num_sms - 1)
        return taken / (num_sms - taken)
    slowdown = profile.overlap.slowdown.value
    if op.group.inside_one_node or profile.intra_node is None:
        return slowdown
    if op.kind.is_transfer:
        at_full_speed_s = transfer_seconds(op.array_bytes, 0, num_sharing=1, profile=profile)
    else:
        at_full_speed_s = _intra_node_seconds(_ring_of(op), profile.cluster.nvlink_gpus, profile)
    return slowdown * min(1.0, at_full_speed_s / seconds(op))


def _levels_left(group: Group) -> int:
    return sum(ranks < group.num_ranks for ranks in (group.ranks_per_node, *group.ranks_per_level))


def _chosen(op: Collective, profile: HardwareProfile, seconds: dict[str, float]) -> float:
    """Time of the profile's chosen algorithm: the fastest by default, a ring if unavailable."""
    table = profile.collectives
    choice = FALLBACK.name if table is None else table.choice
    if choice == "auto":
        return min(seconds.values())
    return seconds.get(choice, seconds[FALLBACK.name])


def _in_node(op: Collective, profile: HardwareProfile) -> dict[str, float]:
    """Time by algorithm inside a node: the measured curve, and the switch in larger nodes."""
    links = _Node(op, op.group.num_ranks, profile)
    times = (
        (algorithm.name, algorithm.in_node_s(entry, links))
        for algorithm, entry in available(profile.collectives)
        if op.kind in algorithm.kinds or algorithm is FALLBACK
    )
    return {name: time_s for name, time_s in times if time_s is not None}


def _across_nodes(op: Collective, profile: HardwareProfile) -> dict[str, float]:
    """Time by algorithm for a group on several nodes."""
    group = op.group
    links = NetworkLinks(
        op.kind,
        op.array_bytes,
        group,
        profile.network.step_latency.value,
        _rate_out_of_a_node(group, profile),
        _intra_node_seconds(op, group.ranks_per_node, profile),
        _Node(op, group.ranks_per_node, profile),
    )
    times = (
        (algorithm.name, algorithm.across_nodes_s(entry, links))
        for algorithm, entry in available(profile.collectives)
        if op.kind in algorithm.kinds
    )
    return {name: time_s for name, time_s in times if time_s is not None}


class _Node(NodeLinks):
    """A collective of some ranks on one node of a profile's machine."""

    def __init__(self, op: Collective, num_ranks: int, profile: HardwareProfile) -> None:
        self.kind, self.array_bytes, self.num_ranks = op.kind, op.array_bytes, num_ranks
        self._op, self._profile = op, profile

    def measured_s(self, kind: str) -> float:
        if kind == self.kind and self._op.group.inside_one_node:
            return _intra_node_seconds(self._op, self.num_ranks, self._profile)
        return _of_a_node(self._op, self._profile, CollectiveKind(kind), self._op.array_bytes)

    @property
    def bytes_per_s(self) -> float:
        return _link_bytes_per_s(self._profile)

    @property
    def all_reduce_latency_s(self) -> float:
        curves = self._profile.links.all_reduce.value
        return curve_for(curves, self.num_ranks).latency

    @property
    def most_ranks_measured(self) -> int:
        return self._profile.links.all_reduce.value[-1].num_ranks


def _of_a_node(
    op: Collective, profile: HardwareProfile, kind: CollectiveKind, array_bytes: int
) -> float:
    num_ranks = op.group.ranks_per_node
    one_node = Group(op.group.axes, num_ranks, num_ranks)
    return _intra_node_seconds(Collective(kind, array_bytes, one_node), num_ranks, profile)


def _all_to_all_seconds(op: Collective, profile: HardwareProfile) -> float:
    """Time of an all-to-all over several nodes, with an equal share of links for each rank."""
    group, efficiency = op.group, _network_efficiency(op.group, profile)
    rate = profile.adapter_share_bytes_per_s * efficiency
    exits = [(group.ranks_per_node, rate)]
    exits += [(ranks, rate / times) for ranks, times in _uplinks(group, profile)]
    latency_s = profile.network.point_to_point.latency.value
    # The r ranks of a node exchange r/n of each array among themselves.
    inside_bytes = op.array_bytes * group.ranks_per_node // group.num_ranks
    inside_s = _of_a_node(op, profile, op.kind, inside_bytes)
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
    network, alone = profile.network, profile.cluster.fills_domain(group.ranks_per_node)
    return (network.whole_node_efficiency if alone else network.concurrent_efficiency).value


def _uplinks(group: Group, profile: HardwareProfile) -> list[tuple[int, float]]:
    # strict: a mesh built without the profile's levels would silently ignore them.
    levels = zip(group.ranks_per_level, profile.cluster.oversubscriptions, strict=True)
    return [(ranks, times) for ranks, times in levels if ranks < group.num_ranks]


def _link_bytes_per_s(profile: HardwareProfile) -> float:
    return profile.links.bandwidth.value * profile.links.in_situ_speed.value


def _intra_node_seconds(op: Collective, num_ranks: int, profile: HardwareProfile) -> float:
    """Time of a ring with all the array's wire bytes among `num_ranks` GPUs of a node."""
    if num_ranks == 1:
        return 0.0
    curve = curve_for(_curves(op.kind, profile).value, num_ranks)
    return ring_seconds(op, curve, _link_bytes_per_s(profile))


def ring_seconds(op: Collective, curve: CollectiveCurve, bandwidth_bytes_per_s: float) -> float:
    """Time of a measured ring: latency, plus wire bytes over the curve's fraction of the link.

    A ring that also leaves the node is none that the switch performs, so it has at most the link.
    """
    most = most_fraction(op.kind, op.group.num_ranks) if op.group.inside_one_node else 1.0
    reached = bandwidth_bytes_per_s * min(_efficiency(curve, op.array_bytes), most)
    return curve.latency + wire_bytes(op) / reached


def _curves(kind: CollectiveKind, profile: HardwareProfile) -> Curves:
    """The measured curves of a kind, or of its ring: of an all-to-all without its own."""
    curves: Curves = getattr(profile.links, kind) or getattr(profile.links, _RINGS[kind])
    return curves


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
