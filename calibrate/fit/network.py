"""Fits the links of a cluster: those inside a node, and the network between nodes.

The network's fit uses the formulas of `simtrain.durations.collectives`: each step of a ring takes
one latency, and each rank of a node has a share of its adapters. Rings over whole nodes and rings
that run at the same time reach a fraction of that share each.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from scipy.optimize import least_squares

from calibrate.fit import links
from calibrate.fit.base import (
    Data,
    entry,
    giga,
    measured,
    micro,
    microseconds,
    round_significant,
    round_up,
)
from calibrate.fit.doubts import LARGE_SIZES, NUM_SIZES, Datasheet
from calibrate.records.schema import CollectiveRecord, Header, name_of
from simtrain.base.accuracy import ErrorTable
from simtrain.durations.collectives import wire_bytes
from simtrain.hardware.algorithms import ring_over_network_s, ring_passes
from simtrain.workload.work import RING_COLLECTIVES, Collective, CollectiveKind

_OUTLIER = 0.1
"""Relative error from which on a record pulls less and less."""
_OPS = *RING_COLLECTIVES, links.TRANSFER


class Load(StrEnum):
    """The collectives that cross the network at the same time."""

    WHOLE = "rings over whole nodes"
    CONCURRENT = "rings beside each other, all ranks of the nodes together"
    ALONE = "one ring of a rank a node, nothing beside it"


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A record and its model: seconds of a step's latency and of the bytes/s of each rank.

    Each rank of a node sends `wire_bytes`; the time has `steps` latencies.
    """

    name: str
    seconds: float
    steps: int
    wire_bytes: float
    model: Callable[[float, float], float]


class RingLinks(Protocol):
    """Links inside a node: the fit of them, or a profile's."""

    def ring_seconds(self, op: Collective, num_ranks: int) -> float:
        """Time of the part of a collective inside a node of `num_ranks` ranks."""


class Crossings:
    """One latency of rings or transfers, and the bytes/s of each rank under each measured load.

    All are fitted at once to the logarithms of times; odd records count less. No rate is above
    the highest of any record beyond the shortest time: latency alone would allow any rate.
    """

    def __init__(self, what: str, timed: Mapping[Load, Sequence[_Crossing]]) -> None:
        self.what = what
        self.timed = timed = {load: crossings for load, crossings in timed.items() if crossings}
        highest = [
            links.highest_rate([(c.wire_bytes, c.seconds) for c in crossings])
            for crossings in timed.values()
        ]
        latency_s = min(c.seconds / c.steps for crossings in timed.values() for c in crossings)

        def errors(x: Sequence[float]) -> list[float]:
            latency, *rates = (math.exp(value) for value in x)
            return [
                math.log(crossing.model(latency, rate) / crossing.seconds)
                for rate, crossings in zip(rates, timed.values(), strict=True)
                for crossing in crossings
            ]

        limits = [math.log(value) for value in (2 * latency_s, *(1.001 * rate for rate in highest))]
        crossings = least_squares(
            errors,
            [math.log(0.7) + limit for limit in limits],
            bounds=([limit - 10 for limit in limits], limits),
            loss="soft_l1",
            f_scale=_OUTLIER,
            **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12),
        )
        latency, *rates = (math.exp(float(value)) for value in crossings.x)
        self.latency_s = round_significant(latency)
        self.rates = dict(zip(timed, rates, strict=True))

    def errors(self, load: Load, rate: float, under: str) -> ErrorTable:
        """The errors under a load."""
        rows = ((c.name, c.seconds, c.model(self.latency_s, rate)) for c in self.timed[load])
        return microseconds(f"{self.what} across nodes{under}", rows)


class NetworkFit:
    """The network between nodes of `per_node` ranks, fitted to records of which none is missing.

    Of the records it uses those that cross nodes (`load_of`), and `node`, the links inside a node,
    if there are any. `adapter_bytes_per_s` is one way, `step_latency_s` that of a step of a ring,
    and `efficiency` has the fractions that rings reach of a node's adapters. `alone` are errors of
    rings that ran alone, which decide only the number of adapters.
    """

    def __init__(
        self, records: Sequence[CollectiveRecord], per_node: int, node: links.LinkFit | None
    ) -> None:
        series = _series(records, per_node)
        rings = {
            load: [ring_crossing(node, r) for kind in RING_COLLECTIVES for r in series[kind, load]]
            for load in Load
        }
        sent = {load: [_transfer(r) for r in series[links.TRANSFER, load]] for load in Load}
        both = self._rings, self._sent = (
            Crossings("collectives", rings),
            Crossings("transfers", sent),
        )
        used = [record for records in series.values() for record in records]
        self.num_nodes, self.step_latency_s = max(r.num_nodes for r in used), self._rings.latency_s
        self.num_adapters, self.adapter_bytes_per_s = _adapters(
            [line.rates for line in both], per_node
        )
        share = self.num_adapters * self.adapter_bytes_per_s / per_node

        def fraction(line: Crossings, load: Load) -> float:
            return round_significant(line.rates[load] / share)

        # A node of one rank has no concurrent rings: its ring is that of the whole node.
        self._full = full = Load.CONCURRENT if per_node > 1 else Load.WHOLE
        self.efficiency = {load: fraction(self._rings, load) for load in (Load.WHOLE, full)}
        self.transfer_efficiency = fraction(self._sent, full)
        self.rings = {
            load: self._rings.errors(load, share * part, f", {load}")
            for load, part in self.efficiency.items()
        }
        self.transfers = self._sent.errors(full, share * self.transfer_efficiency, "")
        self.comparisons = [*self.rings.values(), self.transfers]
        sizes = [record.array_bytes for record in used]
        self._only = f", {self.num_nodes} nodes, {min(sizes)} to {max(sizes)} bytes"

    def section(self, origin: str) -> Data:
        """The section `inter_node`; each number names its numbers of nodes and bytes."""
        only, seen = self._only, f"as much as the ranks of a node reach together, {origin}"
        sent = measured(origin, self.transfers, only)
        whole, full = (
            measured(origin, self.rings[load], only) for load in (Load.WHOLE, self._full)
        )
        all_rings = measured(origin, self.rings[Load.WHOLE], f"{only}, and all other rings")
        counted = f"not counted: {seen}, in what one rank reaches"
        return {
            "num_adapters": entry(self.num_adapters, counted),
            "adapter_bandwidth": entry(
                giga(self.adapter_bytes_per_s), f"no datasheet is known; {seen}"
            ),
            "whole_node_efficiency": whole(self.efficiency[Load.WHOLE]),
            "concurrent_efficiency": full(self.efficiency[self._full]),
            "step_latency": all_rings(micro(self.step_latency_s)),
            "point_to_point": {
                "latency": sent(micro(self._sent.latency_s)),
                "efficiency": sent(self.transfer_efficiency),
            },
        }


class MeasuredCluster:
    """The measured links of a cluster.

    `node` and `network` are the fits, if there are records for them, and `missing` names the
    records that a network lacks. `comparisons` are the errors of the fits.

    `gaps` has the sections that could not be fitted although there were ranks for them, and why.
    """

    def __init__(
        self, header: Header, records: Sequence[CollectiveRecord], sheet: Datasheet | None
    ) -> None:
        on_node = header.num_ranks // header.num_nodes
        self.per_node = per_node = ranks_per_node(records) if records else on_node
        self.node = node = links.fit_links(records, sheet.link_bandwidth.value if sheet else None)
        crosses = any(_series(records, per_node).values())
        self.missing = missing_for_network(records, per_node) if crosses else []
        # The part of a ring inside the nodes needs the curves of all rings.
        self.missing += sorted(node.gaps) if crosses and node else []
        has_network = crosses and not self.missing
        self.network = network = NetworkFit(records, per_node, node) if has_network else None
        self.gaps = dict[str, str]()
        if per_node > 1 and node is None:
            self.gaps["intra_node"] = f"{per_node} ranks, but no collective of enough sizes"
        if header.num_nodes > 1 and not has_network:
            few = ", ".join(self.missing) or "all collectives"
            self.gaps["inter_node"] = f"{header.num_nodes} nodes, but too few sizes of {few}"
        self.comparisons = [each for fit in (node, network) if fit for each in fit.comparisons]


def ranks_per_node(records: Sequence[CollectiveRecord]) -> int:
    """The most ranks per node of any record."""
    return max((math.ceil(r.num_groups * r.num_ranks / r.num_nodes) for r in records), default=1)


def load_of(record: CollectiveRecord, per_node: int) -> Load | None:
    """The load of a record across nodes; None for ops and groups that simtrain has no model of."""
    if record.num_nodes == 1 or record.num_ranks % record.num_nodes or record.op not in _OPS:
        return None
    on_node = record.num_ranks // record.num_nodes
    if record.op == links.TRANSFER and on_node > 1:
        return None
    if record.num_groups == 1 and on_node == per_node:
        return Load.WHOLE
    if record.num_groups * on_node == per_node:
        return Load.CONCURRENT
    return Load.ALONE if record.num_groups == on_node == 1 else None


def _series(
    records: Sequence[CollectiveRecord], per_node: int
) -> Mapping[tuple[str, Load], list[CollectiveRecord]]:
    """The records that the fit uses, if there are enough, by op and load; none for other keys."""
    series = defaultdict[tuple[str, Load], list[CollectiveRecord]](list)
    for record in records:
        if load := load_of(record, per_node):
            series[record.op, load].append(record)
    return series


def missing_for_network(records: Sequence[CollectiveRecord], per_node: int) -> list[str]:
    """The ops and loads with too few sizes for a fit."""
    loads = [Load.WHOLE] if per_node == 1 else [Load.WHOLE, Load.CONCURRENT]
    needed = [(kind.value, load) for load in loads for kind in sorted(RING_COLLECTIVES)]
    series, missing = _series(records, per_node), []
    for op, load in [*needed, (links.TRANSFER, loads[-1])]:
        sizes = {record.array_bytes for record in series[op, load]}
        large = sum(size >= links.SMALLEST_BYTES for size in sizes)
        if len(sizes) < NUM_SIZES or large < LARGE_SIZES:
            missing.append(f"{op} ({load})")
    return missing


def ring_crossing(node: RingLinks | None, record: CollectiveRecord) -> _Crossing:
    """A ring is as slow as the slower of the links inside the nodes and the network."""
    kind, on_node = CollectiveKind(record.op), record.num_ranks // record.num_nodes
    op = links.measured_collective(kind, record.array_bytes, record.num_ranks, record.num_nodes)
    inside_s = 0.0 if node is None or on_node == 1 else node.ring_seconds(op, on_node)
    steps = ring_passes(kind) * (record.num_ranks - 1)
    ring = op.kind, op.array_bytes, op.group.num_ranks
    sent, time_s = wire_bytes(op) / on_node, record.time.median_s

    def seconds(latency_s: float, rate: float) -> float:
        return max(inside_s, ring_over_network_s(*ring, latency_s, on_node * rate))

    return _Crossing(name_of(record), time_s, steps, sent, seconds)


def _transfer(record: CollectiveRecord) -> _Crossing:
    num_bytes, time_s = record.array_bytes, record.time.median_s
    return _Crossing(name_of(record), time_s, 1, num_bytes, lambda s, rate: s + num_bytes / rate)


def _adapters(rates: Sequence[Mapping[Load, float]], per_node: int) -> tuple[int, float]:
    """Number of adapters of a node, and bytes/s of one.

    A rank alone reaches the rate of one adapter. A node has as many as its ranks reach together,
    and at most one for each rank.
    """
    measured = [(load, rate) for by_load in rates for load, rate in by_load.items()]
    node = max(rate if load is Load.ALONE else per_node * rate for load, rate in measured)
    rate_alone = max((rate for load, rate in measured if load is Load.ALONE), default=0.0)
    count = min(round(node / rate_alone), per_node) if rate_alone else per_node
    return count, round_up(max(rate_alone, node / count))
