"""Fits the curve of a collective inside a node: a latency, and an efficiency by size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from calibrate.fit.entry import Data, micro
from calibrate.fit.figures import CollectiveCurveFigures
from calibrate.fit.numbers import round_significant
from simtrain.comparison import Comparison
from simtrain.durations.collectives import ring_seconds, wire_bytes
from simtrain.hardware.links import CollectiveCurve
from simtrain.mesh import Group
from simtrain.workload.work import Collective, CollectiveKind

SMALLEST_BYTES = 65536
"""Arrays below it take the latency."""


def fit_curves(
    measured: Sequence[CollectiveCurveFigures], kind: CollectiveKind, bandwidth: float
) -> tuple[list[Data], Comparison]:
    """The curves of one kind as a profile's data, and the errors of their rounding.

    `bandwidth` is the link's in bytes/s, of which efficiencies are fractions.
    """
    curves = [_curve(figure, kind, bandwidth) for figure in measured]
    rows = (
        (
            f"{figure.num_ranks} ranks, {size} bytes",
            time_us,
            _curve_us(kind, size, curve, bandwidth),
        )
        for figure, curve in zip(measured, curves, strict=True)
        for size, time_us in figure.times
    )
    return curves, Comparison.of(f"{kind} inside a node", "us", rows)


def other_times(points: Sequence[tuple[int, float]], curve: Data, bandwidth: float) -> Comparison:
    """All-reduces that others measured beside the curve: the spread of published figures."""
    kind = CollectiveKind.ALL_REDUCE
    rows = (
        (f"{size} bytes", time_us, _curve_us(kind, size, curve, bandwidth))
        for size, time_us in points
    )
    return Comparison.of("all-reduce measured elsewhere (not fitted)", "us", rows)


def _curve_us(kind: CollectiveKind, size: int, data: Data, bandwidth: float) -> float:
    curve = CollectiveCurve.model_validate(data)
    return ring_seconds(measured_collective(kind, size, curve.num_ranks), curve, bandwidth) * 1e6


def _curve(figure: CollectiveCurveFigures, kind: CollectiveKind, bandwidth: float) -> Data:
    """Latency of the smallest arrays; efficiency from the time that larger arrays add to it.

    A larger array that was measured faster than a smaller one counts as slow as that one: the
    smaller one met noise or a change of algorithm, and time grows with size.
    """
    latency_s = min(time for _, time in figure.times) * 1e-6
    large = [(size, time) for size, time in figure.times if size >= SMALLEST_BYTES]
    beyond = accumulate((max(time * 1e-6 - latency_s, 0.05 * latency_s) for _, time in large), max)
    efficiency = [
        wire_bytes(measured_collective(kind, size, figure.num_ranks)) / (bandwidth * beyond_s)
        for (size, _), beyond_s in zip(large, beyond, strict=True)
    ]
    return {
        "num_ranks": figure.num_ranks,
        "latency": micro(latency_s),
        "array_bytes": [f"{size} B" for size, _ in large],
        "efficiency": [round_significant(min(fraction, 1.0), 5) for fraction in efficiency],
    }


def measured_collective(
    kind: CollectiveKind, array_bytes: int, num_ranks: int, num_nodes: int = 1
) -> Collective:
    """A collective of ranks that are spread evenly over the nodes."""
    # A benchmark has no mesh; durations depend on the group's sizes, not on its axis.
    return Collective(kind, array_bytes, Group(("tp",), num_ranks, num_ranks // num_nodes))
