"""Fits links inside a node and the slowdown of overlap to records, or takes over a profile's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from calibrate.fit.base import (
    Base,
    Data,
    entry,
    giga,
    measured,
    micro,
    microseconds,
    round_significant,
)
from calibrate.fit.doubts import LARGE_SIZES, NUM_SIZES, Datasheet
from calibrate.fit.figures import CollectiveCurveFigures
from calibrate.records.schema import CollectiveRecord, OverlapRecord
from simtrain.base.accuracy import ErrorTable
from simtrain.base.mesh import Group
from simtrain.durations.collectives import curve_for, ring_seconds, wire_bytes
from simtrain.hardware.cluster import CollectiveCurve, most_fraction
from simtrain.workload.work import RING_COLLECTIVES, Collective, CollectiveKind

SMALLEST_BYTES = 65536
"""Arrays below it take the latency."""
TRANSFER = "send_recv"
_ALL_TO_ALL = CollectiveKind.ALL_TO_ALL


@dataclass(frozen=True, slots=True)
class LinkFit:
    """The links of a node, of `bandwidth` bytes/s one way.

    `curves` are those of each collective as a profile's data, with their errors. Transfers between
    two ranks take a latency and reach a fraction of the link, `efficiency`. `gaps` has the entries
    of a profile that could not be fitted, and why.
    """

    bandwidth: float
    curves: dict[CollectiveKind, tuple[list[Data], ErrorTable]]
    latency_s: float
    efficiency: float
    transfers: ErrorTable
    gaps: Mapping[str, str]

    def ring_seconds(self, op: Collective, num_ranks: int) -> float:
        return _curve_seconds(op, num_ranks, self.curves[op.kind][0], self.bandwidth)

    @property
    def comparisons(self) -> list[ErrorTable]:
        return [*(comparison for _, comparison in self.curves.values()), self.transfers]

    def section(self, origin: str, sheet: Datasheet | None, base: Base) -> Data:
        fastest = f"no datasheet is known; the fastest beyond its latency, {origin}"
        source = sheet.link_bandwidth.source if sheet else fastest
        return {
            "bandwidth": entry(giga(self.bandwidth), source),
            **{
                kind.value: measured(origin, points)(curves)
                for kind, (curves, points) in self.curves.items()
            },
            "in_situ_speed": entry(1.0, "collectives as measured alone: no layer was fitted"),
            **(self.transfer_section(origin) if self.transfers.rows else {}),
            **{
                name: base.copied(base.data["intra_node"][name], f"{why}; not fitted")
                for name, why in self.gaps.items()
            },
        }

    def transfer_section(self, origin: str) -> Data:
        sent = measured(origin, self.transfers)
        latency, efficiency = sent(micro(self.latency_s)), sent(self.efficiency)
        return {"point_to_point": {"latency": latency, "efficiency": efficiency}}


def fit_links(
    records: Sequence[CollectiveRecord], link_bytes_per_s: float | None
) -> LinkFit | None:
    """Fit the curves of each collective by group size, and transfers; None without records.

    Only groups that ran alone in one node are fitted; a profile can do without all-to-alls. Without
    a datasheet's `link_bytes_per_s` the link is as fast as the fastest of them beyond its latency.
    Collectives of too few sizes are gaps of the fit; it is None if no collective has enough.
    """
    alone = [r for r in records if r.num_nodes == 1 and r.num_groups == 1]
    if not alone:
        return None
    has_exchanges = any(record.op == _ALL_TO_ALL for record in alone)
    kinds = RING_COLLECTIVES + ((_ALL_TO_ALL,) if has_exchanges else ())
    figures, gaps = dict[CollectiveKind, list[CollectiveCurveFigures]](), dict[str, str]()
    for kind in kinds:
        curves_of_kind, why = _figures(alone, kind)
        if curves_of_kind:
            figures[kind] = curves_of_kind
        elif kind is not _ALL_TO_ALL:
            gaps[kind.value] = why
    sent = _times(alone, TRANSFER, 2)
    if len(sent) < NUM_SIZES:
        gaps["point_to_point"] = _too_few("transfers between two ranks", len(sent), NUM_SIZES)
        sent = []
    if not figures and not sent:
        return None
    bandwidth = link_bytes_per_s or _fastest(figures, sent)
    curves = {kind: fit_curves(curve, kind, bandwidth) for kind, curve in figures.items()}
    if not sent:
        none = microseconds("transfers between two ranks", ())
        return LinkFit(bandwidth, curves, 0.0, 1.0, none, gaps)
    latency_s = round_significant(min(seconds for _, seconds in sent))
    # The median fraction of the link that the larger half of the transfers reaches.
    beyond = [(size, max(s - latency_s, 0.05 * latency_s)) for size, s in sent[len(sent) // 2 :]]
    efficiency = min(1.0, median(size / seconds / bandwidth for size, seconds in beyond))
    efficiency = round_significant(efficiency)
    rows = ((f"{size} bytes", s, latency_s + size / (bandwidth * efficiency)) for size, s in sent)
    transfers = microseconds("transfers between two ranks", rows)
    return LinkFit(bandwidth, curves, latency_s, efficiency, transfers, gaps)


def fit_slowdown(records: Sequence[OverlapRecord]) -> tuple[float, ErrorTable]:
    """Fit how much longer a product and a collective take while both run: the median of all.

    The slowdown of a record is the mean of the two, and never below 0. The fit is at most 1: above
    it, they compete for more than the device that they share. Without records it is 0.
    """
    slowdowns = []
    for r in records:
        pairs = (r.compute_alone, r.compute_beside), (r.collective_alone, r.collective_beside)
        longer = fmean(beside.median_s / alone.median_s - 1 for alone, beside in pairs)
        slowdowns.append(max(0.0, longer))
    slowdown = min(1.0, round_significant(median(slowdowns or [0.0])))
    rows = (
        (r.what, 1 + slowdown_of_run, 1 + slowdown)
        for r, slowdown_of_run in zip(records, slowdowns, strict=True)
    )
    title = "products and collectives beside each other"
    return slowdown, ErrorTable.of(title, "times as long", rows)


def _times(records: Sequence[CollectiveRecord], op: str, num_ranks: int) -> list[tuple[int, float]]:
    """Bytes and seconds of an op and a group size, by array size; medians if one occurs again."""
    seconds: dict[int, list[float]] = {}
    for record in records:
        if (record.op, record.num_ranks) == (op, num_ranks):
            seconds.setdefault(record.array_bytes, []).append(record.time.median_s)
    return [(size, median(times)) for size, times in sorted(seconds.items())]


def _figures(
    records: Sequence[CollectiveRecord], kind: CollectiveKind
) -> tuple[list[CollectiveCurveFigures], str]:
    """The times of a kind, by group size, for groups of enough sizes; or why there are none."""
    of_kind = [record for record in records if record.op == kind or kind is not _ALL_TO_ALL]
    curves, why = [], f"no {kind} was measured"
    for num_ranks in sorted({record.num_ranks for record in of_kind}):
        times = [(size, seconds * 1e6) for size, seconds in _times(of_kind, kind.value, num_ranks)]
        large = sum(size >= SMALLEST_BYTES for size, _ in times)
        what = f"sizes of {kind} over {num_ranks} ranks"
        if len(times) < NUM_SIZES:
            why = _too_few(what, len(times), NUM_SIZES)
        elif large < LARGE_SIZES:
            why = _too_few(f"{what} from {SMALLEST_BYTES} bytes on", large, LARGE_SIZES)
        else:
            curves.append(CollectiveCurveFigures(num_ranks=num_ranks, times=times))
    return curves, why


def _too_few(what: str, number: int, needed: int) -> str:
    return f"{number} {what}, and a fit needs {needed}"


def _fastest(
    figures: dict[CollectiveKind, list[CollectiveCurveFigures]], sent: list[tuple[int, float]]
) -> float:
    """The highest rate of any collective or transfer beyond its latency, in bytes/s.

    An all-reduce may have run in the switch. Beside other collectives or transfers, it shows only
    the least that its link can be.
    """
    timed: list[Sequence[tuple[float, float]]] = [sent] if sent else []
    has_others = bool(timed) or len(figures) > 1
    for kind, curves in figures.items():
        for curve in curves:
            ops = (
                (measured_collective(kind, size, curve.num_ranks), us) for size, us in curve.times
            )
            most = most_fraction(kind, curve.num_ranks) if has_others else 1.0
            timed.append([(wire_bytes(op) / most, us * 1e-6) for op, us in ops])
    return round_significant(max(map(highest_rate, timed)))


def highest_rate(timed: Sequence[tuple[float, float]]) -> float:
    """Highest bytes/s beyond the shortest time, of times that are mostly bytes if there are any."""
    latency_s = min(seconds for _, seconds in timed)
    beyond = [b / (seconds - latency_s) for b, seconds in timed if seconds >= 2 * latency_s]
    return max(beyond or [num_bytes / seconds for num_bytes, seconds in timed])


def fit_curves(
    measured: Sequence[CollectiveCurveFigures], kind: CollectiveKind, bandwidth: float
) -> tuple[list[Data], ErrorTable]:
    """The curves of one kind as a profile's data, and the errors of their rounding.

    `bandwidth` is the link's in bytes/s, of which efficiencies are fractions.
    """
    curves = [_curve(figure, kind, bandwidth) for figure in measured]
    rows = (
        (f"{figure.num_ranks} ranks, {name}", us, predicted)
        for figure, curve in zip(measured, curves, strict=True)
        for name, us, predicted in _curve_rows(figure.times, kind, curve, bandwidth)
    )
    return curves, ErrorTable.of(f"{kind} inside a node", "us", rows)


def other_times(points: Sequence[tuple[int, float]], curve: Data, bandwidth: float) -> ErrorTable:
    """Compare all-reduces that others measured with the curve: the spread of figures."""
    rows = _curve_rows(points, CollectiveKind.ALL_REDUCE, curve, bandwidth)
    return ErrorTable.of("all-reduce measured elsewhere (not fitted)", "us", rows)


def _curve_rows(
    times: Sequence[tuple[int, float]], kind: CollectiveKind, curve: Data, bandwidth: float
) -> Iterator[tuple[str, float, float]]:
    """The name of each array, its microseconds, and those of a curve."""
    for size, time_us in times:
        op = measured_collective(kind, size, num_ranks := curve["num_ranks"])
        yield f"{size} bytes", time_us, _curve_seconds(op, num_ranks, [curve], bandwidth) * 1e6


def _curve_seconds(op: Collective, num_ranks: int, data: Sequence[Data], bandwidth: float) -> float:
    curves = [CollectiveCurve.model_validate(curve) for curve in data]
    return ring_seconds(op, curve_for(curves, num_ranks), bandwidth)


def _curve(figure: CollectiveCurveFigures, kind: CollectiveKind, bandwidth: float) -> Data:
    """Latency of the smallest arrays; efficiency from the time that larger arrays add to it.

    A larger array that was measured faster than a smaller one counts as slow as that one: the
    smaller one met noise or a change of algorithm, and time grows with size. Fractions above 1 are
    noise of short times, unless the largest array has one too: the switch reduces it (NVLS).
    """
    latency_s = min(time for _, time in figure.times) * 1e-6
    large = [(size, time) for size, time in figure.times if size >= SMALLEST_BYTES]
    beyond = accumulate((max(time * 1e-6 - latency_s, 0.05 * latency_s) for _, time in large), max)
    efficiency = [
        wire_bytes(measured_collective(kind, size, figure.num_ranks)) / (bandwidth * beyond_s)
        for (size, _), beyond_s in zip(large, beyond, strict=True)
    ]
    most = most_fraction(kind, figure.num_ranks) if efficiency and efficiency[-1] > 1 else 1.0
    return {
        "num_ranks": figure.num_ranks,
        "latency": micro(latency_s),
        "array_bytes": [f"{size} B" for size, _ in large],
        "efficiency": [round_significant(min(fraction, most), 5) for fraction in efficiency],
    }


def measured_collective(
    kind: CollectiveKind, array_bytes: int, num_ranks: int, num_nodes: int = 1
) -> Collective:
    """A collective of ranks that are spread evenly over the nodes."""
    # A benchmark has no mesh; durations depend on the group's sizes, not on its axis.
    return Collective(kind, array_bytes, Group(("tp",), num_ranks, num_ranks // num_nodes))
