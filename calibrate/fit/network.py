"""Fits the network between nodes to records of collectives that crossed it.

The fit uses the formulas of `simtrain.durations.collectives`: each step of a ring takes one
latency, and each rank of a node has a share of its adapters. Rings over whole nodes and rings that
run at the same time reach a fraction of that share each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.optimize import least_squares

from calibrate.fit.collectives import SMALLEST_BYTES, measured_collective
from calibrate.fit.entry import Data, Origin, entry, giga, micro
from calibrate.fit.links import TRANSFER, LinkFit, highest_rate
from calibrate.fit.numbers import round_significant, round_up
from calibrate.fit.requirements import LARGE_SIZES, NUM_SIZES
from calibrate.records.checks import name_of
from calibrate.records.schema import CollectiveRecord
from simtrain.comparison import Comparison
from simtrain.durations.collectives import network_seconds, wire_bytes
from simtrain.workload.work import RING_COLLECTIVES, CollectiveKind

_OUTLIER = 0.1
"""Relative error from which on a record pulls less and less."""
_KINDS = frozenset(kind.value for kind in RING_COLLECTIVES)


class Load(StrEnum):
    """The collectives that cross the network at the same time."""

    WHOLE = "rings over whole nodes"
    CONCURRENT = "rings beside each other, all ranks of the nodes together"
    ALONE = "one ring of a rank a node, nothing beside it"


@dataclass(frozen=True, slots=True)
class NetworkFit:
    """The network between nodes.

    Args:
        num_nodes: the most nodes of a record.
        num_adapters, adapter_bytes_per_s: adapters of a node, and the rate of each, one way.
        step_latency_s: seconds of a step of a ring.
        efficiency: the fractions that rings reach of a node's adapters.
        transfer_latency_s, transfer_efficiency: the same of transfers.
        rings, transfers: the errors of the fits.
        alone: errors of rings with nothing beside them, which decide only the ratio of adapters.
        array_bytes: the smallest and the largest array.
    """

    num_nodes: int
    num_adapters: int
    adapter_bytes_per_s: float
    step_latency_s: float
    efficiency: Mapping[Load, float]
    transfer_latency_s: float
    transfer_efficiency: float
    rings: Mapping[Load, Comparison]
    transfers: Comparison
    alone: Sequence[Comparison]
    array_bytes: tuple[int, int]

    def section(self, origin: Origin) -> Data:
        """The section `inter_node`; each number names its numbers of nodes and bytes."""
        least, most = self.array_bytes
        only = f", {self.num_nodes} nodes, {least} to {most} bytes"
        seen = f"as much as the ranks of a node reach together, {origin.measured}"
        bandwidth = giga(self.adapter_bytes_per_s)
        whole, transfers = self.rings[Load.WHOLE], self.transfers
        # A node of one rank has no concurrent rings: its ring is that of the whole node.
        concurrent = self.rings.get(Load.CONCURRENT, whole)
        fractions = self.efficiency
        latency = micro(self.step_latency_s)
        return {
            "num_adapters": entry(
                self.num_adapters, f"not counted: {seen}, in what one rank reaches"
            ),
            "adapter_bandwidth": entry(bandwidth, f"no datasheet is known; {seen}"),
            "whole_node_efficiency": origin.entry(fractions[Load.WHOLE], whole, only),
            "concurrent_efficiency": origin.entry(fractions[Load.CONCURRENT], concurrent, only),
            "step_latency": origin.entry(latency, whole, f"{only}, and all other rings"),
            "point_to_point": {
                "latency": origin.entry(micro(self.transfer_latency_s), transfers, only),
                "efficiency": origin.entry(self.transfer_efficiency, transfers, only),
            },
        }


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A record with its model.

    Args:
        name, seconds: the record, and its measured time.
        steps: latencies in the time.
        wire_bytes: bytes that each rank of a node sends.
        model: seconds of a step's latency in seconds and of bytes/s of each rank.
    """

    name: str
    seconds: float
    steps: int
    wire_bytes: float
    model: Callable[[float, float], float]


Loads = Mapping[Load, Sequence[_Crossing]]


def ranks_per_node(records: Sequence[CollectiveRecord]) -> int:
    """The most ranks per node of any record."""
    return max(
        (math.ceil(r.num_groups * r.num_ranks / r.num_nodes) for r in records),
        default=1,
    )


def load_of(record: CollectiveRecord, per_node: int) -> Load | None:
    """The load of a record; None for groups that simtrain has no model of."""
    if record.num_nodes == 1 or record.num_ranks % record.num_nodes:
        return None
    on_node = record.num_ranks // record.num_nodes
    if record.num_groups == 1 and on_node == per_node:
        return Load.WHOLE
    if record.num_groups * on_node == per_node:
        return Load.CONCURRENT
    return Load.ALONE if record.num_groups == on_node == 1 else None


def is_used(record: CollectiveRecord, per_node: int) -> bool:
    """True if a fit uses the record, provided that there are enough."""
    load = load_of(record, per_node)
    if record.op == TRANSFER:
        return load is not None and record.num_ranks == record.num_nodes
    return load is not None and record.op in _KINDS


def missing_for_network(records: Sequence[CollectiveRecord], per_node: int) -> list[str]:
    """The ops and loads with too few sizes for a fit."""
    loads = [Load.WHOLE] if per_node == 1 else [Load.WHOLE, Load.CONCURRENT]
    needed = [(op, load) for load in loads for op in sorted(_KINDS)] + [(TRANSFER, loads[-1])]
    return [
        f"{op} ({load})" for op, load in needed if not _is_enough(_of(records, op, load, per_node))
    ]


def fit_network(
    records: Sequence[CollectiveRecord], per_node: int, node: LinkFit | None
) -> NetworkFit:
    """Fit the network to records of which none is missing; `node` has the links inside a node."""
    crossing = [record for record in records if is_used(record, per_node)]
    rings: Loads = {
        load: [
            _ring(record, node)
            for kind in RING_COLLECTIVES
            for record in _of(crossing, kind.value, load, per_node)
        ]
        for load in Load
    }
    sent: Loads = {
        load: [_transfer(record) for record in _of(crossing, TRANSFER, load, per_node)]
        for load in Load
    }
    step_s, ring_rates = _fit(rings)
    transfer_s, sent_rates = _fit(sent)
    num_adapters, bandwidth = _adapters([ring_rates, sent_rates], per_node)
    share = num_adapters * bandwidth / per_node
    whole = Load.WHOLE
    loaded = Load.CONCURRENT if per_node > 1 else whole
    fractions = {load: _fraction(ring_rates[load], share) for load in (whole, loaded)}
    sent_fraction = _fraction(sent_rates[loaded], share)
    alone = [
        _times(f"{what} across nodes, {Load.ALONE}", timed[Load.ALONE], latency, rate)
        for what, timed, latency, rate in (
            ("collectives", rings, step_s, ring_rates.get(Load.ALONE)),
            ("transfers", sent, transfer_s, sent_rates.get(Load.ALONE)),
        )
        if rate is not None
    ]
    return NetworkFit(
        max(record.num_nodes for record in crossing),
        num_adapters,
        bandwidth,
        step_s,
        {whole: fractions[whole], Load.CONCURRENT: fractions[loaded]},
        transfer_s,
        sent_fraction,
        {
            load: _times(f"collectives across nodes, {load}", rings[load], step_s, share * fraction)
            for load, fraction in fractions.items()
        },
        _times("transfers across nodes", sent[loaded], transfer_s, share * sent_fraction),
        alone,
        (min(r.array_bytes for r in crossing), max(r.array_bytes for r in crossing)),
    )


def _of(
    records: Sequence[CollectiveRecord], op: str, load: Load, per_node: int
) -> list[CollectiveRecord]:
    return [
        record
        for record in records
        if record.op == op and is_used(record, per_node) and load_of(record, per_node) is load
    ]


def _is_enough(records: Sequence[CollectiveRecord]) -> bool:
    sizes = {record.array_bytes for record in records}
    large = sum(size >= SMALLEST_BYTES for size in sizes)
    return len(sizes) >= NUM_SIZES and large >= LARGE_SIZES


def _ring(record: CollectiveRecord, node: LinkFit | None) -> _Crossing:
    """A ring is as slow as the slower of the links inside the nodes and the network."""
    kind, on_node = CollectiveKind(record.op), record.num_ranks // record.num_nodes
    op = measured_collective(kind, record.array_bytes, record.num_ranks, record.num_nodes)
    inside_s = 0.0 if node is None or on_node == 1 else node.ring_seconds(op, on_node)
    steps = (2 if kind is CollectiveKind.ALL_REDUCE else 1) * (record.num_ranks - 1)
    return _Crossing(
        name_of(record),
        record.time.median_s,
        steps,
        wire_bytes(op) / on_node,
        lambda latency_s, rate: max(inside_s, network_seconds(op, latency_s, on_node * rate)),
    )


def _transfer(record: CollectiveRecord) -> _Crossing:
    num_bytes = record.array_bytes
    return _Crossing(
        name_of(record),
        record.time.median_s,
        1,
        num_bytes,
        lambda latency_s, rate: latency_s + num_bytes / rate,
    )


def _fit(timed: Loads) -> tuple[float, dict[Load, float]]:
    """Fit seconds of a step, and bytes/s of each rank under each measured load.

    All are fitted at once to the logarithms of times; odd records count less. No rate is above
    the highest of any record beyond the shortest time: latency alone would allow any rate.
    """
    loads = [load for load in Load if timed[load]]
    highest = [highest_rate([(c.wire_bytes, c.seconds) for c in timed[load]]) for load in loads]
    latency_s = min(crossing.seconds / crossing.steps for load in loads for crossing in timed[load])

    def errors(x: Sequence[float]) -> list[float]:
        latency, *rates = (math.exp(value) for value in x)
        return [
            math.log(crossing.model(latency, rate) / crossing.seconds)
            for load, rate in zip(loads, rates, strict=True)
            for crossing in timed[load]
        ]

    limits = [math.log(value) for value in (2 * latency_s, *(1.001 * rate for rate in highest))]
    start = [math.log(0.7) + limit for limit in limits]
    bounds = ([limit - 10 for limit in limits], limits)
    tight = {"xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-12}
    found = least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=_OUTLIER, **tight)
    latency, *rates = (math.exp(float(value)) for value in found.x)
    return round_significant(latency), dict(zip(loads, rates, strict=True))


def _adapters(rates: Sequence[Mapping[Load, float]], per_node: int) -> tuple[int, float]:
    """Number of adapters of a node, and bytes/s of one.

    A rank alone reaches the rate of one adapter. A node has as many as its ranks reach together,
    and at most one for each rank.
    """
    node = max(
        (1 if load is Load.ALONE else per_node) * rate
        for found in rates
        for load, rate in found.items()
    )
    one = max((found[Load.ALONE] for found in rates if Load.ALONE in found), default=0.0)
    count = min(round(node / one), per_node) if one else per_node
    return count, round_up(max(one, node / count))


def _fraction(rate: float, share: float) -> float:
    return round_significant(min(rate / share, 1.0))


def _times(title: str, timed: Sequence[_Crossing], latency_s: float, rate: float) -> Comparison:
    rows = ((c.name, c.seconds * 1e6, c.model(latency_s, rate) * 1e6) for c in timed)
    return Comparison.of(title, "us", rows)
