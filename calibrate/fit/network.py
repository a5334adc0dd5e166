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
from functools import partial

from scipy.optimize import least_squares

from calibrate.fit.entry import Data, Origin, entry, giga, micro
from calibrate.fit.links import SMALLEST_BYTES, TRANSFER, LinkFit, highest_rate, measured_collective
from calibrate.fit.numbers import microseconds, round_significant, round_up
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


class NetworkFit:
    """The network between nodes, fitted to records of which none is missing.

    Args:
        records: collectives of any group; the fit uses those that cross nodes (`is_used`).
        per_node: ranks per node.
        node: the links inside a node, if there are any.

    Attributes:
        num_nodes: the most nodes of a record.
        num_adapters, adapter_bytes_per_s: adapters of a node, and the rate of each, one way.
        step_latency_s: seconds of a step of a ring.
        efficiency: the fractions that rings reach of a node's adapters.
        transfer_latency_s, transfer_efficiency: the same of transfers.
        rings, transfers: the errors of the fits.
        alone: errors of rings that run alone, which decide only the ratio of adapters.
    """

    def __init__(
        self, records: Sequence[CollectiveRecord], per_node: int, node: LinkFit | None
    ) -> None:
        self._crossing = [record for record in records if is_used(record, per_node)]
        by_kind = [r for kind in RING_COLLECTIVES for r in self._crossing if r.op == kind]
        transfers = [r for r in self._crossing if r.op == TRANSFER]
        rings = _by_load(by_kind, per_node, partial(_ring, node))
        sent = _by_load(transfers, per_node, _transfer)
        self.num_nodes = max(record.num_nodes for record in self._crossing)
        self.step_latency_s, ring_rates = _fit(rings)
        self.transfer_latency_s, sent_rates = _fit(sent)
        both = [ring_rates, sent_rates]
        self.num_adapters, self.adapter_bytes_per_s = _adapters(both, per_node)
        share = self.num_adapters * self.adapter_bytes_per_s / per_node

        def fraction(rate: float) -> float:
            return round_significant(min(rate / share, 1.0))

        # A node of one rank has no concurrent rings: its ring is that of the whole node.
        self._full = Load.CONCURRENT if per_node > 1 else Load.WHOLE
        self.efficiency = {load: fraction(ring_rates[load]) for load in (Load.WHOLE, self._full)}
        self.transfer_efficiency = fraction(sent_rates[self._full])
        ring_errors = partial(_errors, "collectives", rings, self.step_latency_s)
        sent_errors = partial(_errors, "transfers", sent, self.transfer_latency_s)
        self.rings = {
            load: ring_errors(load, share * part, f", {load}")
            for load, part in self.efficiency.items()
        }
        self.transfers = sent_errors(self._full, share * self.transfer_efficiency, "")
        self.alone = [
            errors(Load.ALONE, rates[Load.ALONE], f", {Load.ALONE}")
            for errors, rates in ((ring_errors, ring_rates), (sent_errors, sent_rates))
            if Load.ALONE in rates
        ]

    @property
    def comparisons(self) -> list[Comparison]:
        """The errors of the fits."""
        return [*self.rings.values(), self.transfers]

    def section(self, origin: Origin) -> Data:
        """The section `inter_node`; each number names its numbers of nodes and bytes."""
        sizes = [record.array_bytes for record in self._crossing]
        only = f", {self.num_nodes} nodes, {min(sizes)} to {max(sizes)} bytes"
        seen = f"as much as the ranks of a node reach together, {origin.measured}"
        bandwidth, latency = giga(self.adapter_bytes_per_s), micro(self.step_latency_s)
        whole, transfers = self.rings[Load.WHOLE], self.transfers

        def efficiency(load: Load) -> Data:
            return origin.entry(self.efficiency[load], self.rings[load], only)

        return {
            "num_adapters": entry(
                self.num_adapters, f"not counted: {seen}, in what one rank reaches"
            ),
            "adapter_bandwidth": entry(bandwidth, f"no datasheet is known; {seen}"),
            "whole_node_efficiency": efficiency(Load.WHOLE),
            "concurrent_efficiency": efficiency(self._full),
            "step_latency": origin.entry(latency, whole, f"{only}, and all other rings"),
            "point_to_point": {
                "latency": origin.entry(micro(self.transfer_latency_s), transfers, only),
                "efficiency": origin.entry(self.transfer_efficiency, transfers, only),
            },
        }


def ranks_per_node(records: Sequence[CollectiveRecord]) -> int:
    """The most ranks per node of any record."""
    return max((math.ceil(r.num_groups * r.num_ranks / r.num_nodes) for r in records), default=1)


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

    def is_enough(op: str, load: Load) -> bool:
        sizes = {
            r.array_bytes
            for r in records
            if r.op == op and is_used(r, per_node) and load_of(r, per_node) is load
        }
        return len(sizes) >= NUM_SIZES and sum(s >= SMALLEST_BYTES for s in sizes) >= LARGE_SIZES

    return [f"{op} ({load})" for op, load in needed if not is_enough(op, load)]


def _by_load(
    records: Sequence[CollectiveRecord],
    per_node: int,
    model: Callable[[CollectiveRecord], _Crossing],
) -> Loads:
    return {load: [model(r) for r in records if load_of(r, per_node) is load] for load in Load}


def _ring(node: LinkFit | None, record: CollectiveRecord) -> _Crossing:
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
    num_bytes, time_s = record.array_bytes, record.time.median_s
    return _Crossing(name_of(record), time_s, 1, num_bytes, lambda s, rate: s + num_bytes / rate)


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
    found = [(load, rate) for by_load in rates for load, rate in by_load.items()]
    node = max(rate if load is Load.ALONE else per_node * rate for load, rate in found)
    one = max((rate for load, rate in found if load is Load.ALONE), default=0.0)
    count = min(round(node / one), per_node) if one else per_node
    return count, round_up(max(one, node / count))


def _errors(
    what: str, timed: Loads, latency_s: float, load: Load, rate: float, under: str
) -> Comparison:
    rows = ((c.name, c.seconds, c.model(latency_s, rate)) for c in timed[load])
    return microseconds(f"{what} across nodes{under}", rows)
