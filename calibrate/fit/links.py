"""Fits the links inside a node, and running beside them, to records of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from calibrate.fit.checks import LARGE_SIZES, NUM_SIZES, require
from calibrate.fit.collectives import SMALLEST_BYTES, fit_curves, measured_collective
from calibrate.fit.figures import CollectiveCurveFigures
from calibrate.fit.residuals import Residual, Residuals, round_significant
from calibrate.records.schema import CollectiveRecord, OverlapRecord, Timing
from simtrain.durations.collectives import curve_for, ring_seconds, wire_bytes
from simtrain.hardware.links import CollectiveCurve
from simtrain.workload.work import RING_COLLECTIVES, Collective, CollectiveKind

_ALL_TO_ALL = CollectiveKind.ALL_TO_ALL


@dataclass(frozen=True, slots=True)
class LinkFit:
    """Curves as a profile's data; `bandwidth` in bytes/s, one way, which they are fractions of."""

    bandwidth: float
    num_ranks: int
    curves: dict[CollectiveKind, list[dict[str, Any]]]
    latency_s: float
    efficiency: float
    residuals: dict[CollectiveKind, Residuals]
    point_to_point: Residuals

    def ring_seconds(self, op: Collective, num_ranks: int) -> float:
        """Seconds of the part of a collective that `num_ranks` of a node do, as simtrain has it."""
        curves = [CollectiveCurve.model_validate(curve) for curve in self.curves[op.kind]]
        return ring_seconds(op, curve_for(curves, num_ranks), self.bandwidth)

    def transfer_seconds(self, num_bytes: int) -> float:
        """Seconds of a transfer."""
        return self.latency_s + num_bytes / (self.bandwidth * self.efficiency)


def fit_links(
    records: Sequence[CollectiveRecord], link_bytes_per_s: float | None
) -> LinkFit | None:
    """Curves of each collective by group size, and transfers; None where none were measured.

    Only groups that ran alone in one node are fitted; a profile can do without all-to-alls. Without
    a datasheet's `link_bytes_per_s` the link is as fast as the fastest of them beyond its latency.

    Raises:
        InputError: E720, too few sizes of a collective.
    """
    alone = [r for r in records if r.num_nodes == 1 and r.num_groups == 1]
    if not alone:
        return None
    figures = {kind: _figures(alone, kind) for kind in RING_COLLECTIVES}
    if exchanges := [record for record in alone if record.op == _ALL_TO_ALL]:
        figures[_ALL_TO_ALL] = _figures(exchanges, _ALL_TO_ALL)
    transfers = sorted(_of(alone, "send_recv", 2), key=lambda record: record.array_bytes)
    require("transfers between two ranks", len(transfers), NUM_SIZES, "collectives")
    latency_s = round_significant(min(record.time.median_s for record in transfers))
    sent = [(record.array_bytes, record.time.median_s) for record in transfers]
    bandwidth = link_bytes_per_s or _fastest(figures, sent)
    fitted = {kind: fit_curves(found, kind, bandwidth) for kind, found in figures.items()}
    efficiency = round_significant(_efficiency(sent, latency_s, bandwidth))
    rows = [
        Residual(
            f"{num_bytes} bytes",
            seconds * 1e6,
            (latency_s + num_bytes / (bandwidth * efficiency)) * 1e6,
        )
        for num_bytes, seconds in sent
    ]
    return LinkFit(
        bandwidth,
        max(record.num_ranks for record in alone),
        {kind: curves for kind, (curves, _) in fitted.items()},
        latency_s,
        efficiency,
        {kind: residuals for kind, (_, residuals) in fitted.items()},
        Residuals("transfers between two ranks", "us", rows),
    )


def fits_inside(record: CollectiveRecord) -> bool:
    """Whether a record of one node is of what a profile has: its collectives and its transfers."""
    return record.op != "send_recv" or record.num_ranks == 2


def groups_at_once(records: Sequence[CollectiveRecord], fit: LinkFit) -> Residuals:
    """Groups of a node beside each other, which simtrain takes to be as fast as one alone."""
    several = [r for r in records if r.num_nodes == 1 and r.num_groups > 1]
    rows = [
        Residual(
            f"{r.num_groups} times {r.op} over {r.num_ranks} ranks, {r.array_bytes} bytes",
            r.time.median_s * 1e6,
            _alone_seconds(r, fit) * 1e6,
        )
        for r in several
        if fits_inside(r) and (r.op == "send_recv" or r.op in fit.curves)
    ]
    return Residuals("groups at once inside a node, beside the fit of one (not fitted)", "us", rows)


def _alone_seconds(record: CollectiveRecord, fit: LinkFit) -> float:
    if record.op == "send_recv":
        return fit.transfer_seconds(record.array_bytes)
    kind = CollectiveKind(record.op)
    op = measured_collective(kind, record.array_bytes, record.num_ranks)
    return fit.ring_seconds(op, record.num_ranks)


def fit_slowdown(records: Sequence[OverlapRecord]) -> tuple[float, Residuals]:
    """How much longer a product and a collective take beside each other: the median of all.

    Of each record it is the mean of the two, and never below 0. All in all it is at most 1: what
    takes longer side by side than one after the other loses to more than the device that it shares.
    """
    found = [
        max(0.0, (_longer(r.compute_alone, r.compute_beside) + _other(r)) / 2) for r in records
    ]
    slowdown = min(1.0, round_significant(median(found)))
    rows = [
        Residual(record.what, 1 + one, 1 + slowdown)
        for record, one in zip(records, found, strict=True)
    ]
    return slowdown, Residuals("products and collectives beside each other", "times as long", rows)


def _other(record: OverlapRecord) -> float:
    return _longer(record.collective_alone, record.collective_beside)


def _longer(alone: Timing, beside: Timing) -> float:
    return beside.median_s / alone.median_s - 1


def _of(records: Sequence[CollectiveRecord], op: str, num_ranks: int) -> list[CollectiveRecord]:
    return [record for record in records if record.op == op and record.num_ranks == num_ranks]


def _figures(
    records: Sequence[CollectiveRecord], kind: CollectiveKind
) -> list[CollectiveCurveFigures]:
    """What was measured of a kind, a group size at a time."""
    found = []
    for num_ranks in sorted({record.num_ranks for record in records}):
        of_kind = sorted(_of(records, kind.value, num_ranks), key=lambda r: r.array_bytes)
        sizes = [record.array_bytes for record in of_kind]
        what = f"sizes of {kind} over {num_ranks} ranks"
        require(what, len(sizes), NUM_SIZES, "collectives")
        large = sum(size >= SMALLEST_BYTES for size in sizes)
        require(f"{what} from {SMALLEST_BYTES} bytes on", large, LARGE_SIZES, "collectives")
        times = [(record.array_bytes, record.time.median_s * 1e6) for record in of_kind]
        found.append(CollectiveCurveFigures(num_ranks=num_ranks, times=times))
    return found


def _fastest(
    figures: dict[CollectiveKind, list[CollectiveCurveFigures]], sent: list[tuple[int, float]]
) -> float:
    """The highest rate of any collective or transfer beyond its latency, in bytes/s."""
    rates = [highest_rate(sent)]
    for kind, curves in figures.items():
        for curve in curves:
            wire = [
                (wire_bytes(measured_collective(kind, size, curve.num_ranks)), us * 1e-6)
                for size, us in curve.times
            ]
            rates.append(highest_rate(wire))
    return round_significant(max(rates))


def highest_rate(timed: Sequence[tuple[float, float]]) -> float:
    """Bytes/s of what is mostly bytes, beyond the shortest time; or at all."""
    latency_s = min(seconds for _, seconds in timed)
    beyond = [b / (seconds - latency_s) for b, seconds in timed if seconds >= 2 * latency_s]
    return max(beyond or [num_bytes / seconds for num_bytes, seconds in timed])


def _efficiency(sent: Sequence[tuple[int, float]], latency_s: float, bandwidth: float) -> float:
    """The fraction of the link that the larger half of the transfers reaches: the median."""
    larger = sent[len(sent) // 2 :]
    beyond = ((size, max(seconds - latency_s, 0.05 * latency_s)) for size, seconds in larger)
    return min(1.0, median(size / seconds / bandwidth for size, seconds in beyond))
