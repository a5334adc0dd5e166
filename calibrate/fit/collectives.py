"""Turns measured collectives into a latency and an efficiency by size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from calibrate.fit.figures import (
    CollectiveCurveFigures,
    Figures,
    FiguresOfParts,
    FiguresWithoutLayers,
)
from calibrate.fit.residuals import Residual, Residuals, round_significant
from simtrain.durations.collectives import ring_seconds, wire_bytes
from simtrain.hardware.links import CollectiveCurve
from simtrain.mesh import Group
from simtrain.workload.work import Collective, CollectiveKind

SMALLEST_BYTES = 65536
"""Below it a collective's time is latency."""


def fit_collective(
    figures: FiguresOfParts, kind: CollectiveKind
) -> tuple[list[dict[str, Any]], Residuals]:
    """The published curves of one kind, as a profile's data, and how far they are off."""
    bandwidth = figures.datasheet.intra_node.bandwidth.value
    return fit_curves(figures.collectives.of(kind), kind, bandwidth)


def fit_curves(
    measured: Sequence[CollectiveCurveFigures], kind: CollectiveKind, bandwidth: float
) -> tuple[list[dict[str, Any]], Residuals]:
    """The curves of one kind, as a profile's data, and how far rounding takes them off.

    `bandwidth` is the link's in bytes/s, of which efficiencies are fractions.
    """
    curves = [_curve(figure, kind, bandwidth) for figure in measured]
    rows = [
        Residual(
            f"{figure.num_ranks} ranks, {size} bytes",
            time_us,
            ring_seconds(
                measured_collective(kind, size, figure.num_ranks),
                CollectiveCurve.model_validate(curve),
                bandwidth,
            )
            * 1e6,
        )
        for figure, curve in zip(measured, curves, strict=True)
        for size, time_us in figure.times
    ]
    return curves, Residuals(f"{kind} inside a node", "us", rows)


def other_times(figures: Figures | FiguresWithoutLayers, curves: list[dict[str, Any]]) -> Residuals:
    """The largest group's all-reduce beside what others measured: the spread of such figures."""
    kind, curve = CollectiveKind.ALL_REDUCE, CollectiveCurve.model_validate(curves[-1])
    bandwidth = figures.datasheet.intra_node.bandwidth.value
    rows = [
        Residual(
            f"{size} bytes",
            time_us,
            ring_seconds(measured_collective(kind, size, curve.num_ranks), curve, bandwidth) * 1e6,
        )
        for size, time_us in figures.all_reduce_elsewhere.points
    ]
    return Residuals("all-reduce measured elsewhere (not fitted)", "us", rows)


def _curve(
    figure: CollectiveCurveFigures, kind: CollectiveKind, bandwidth: float
) -> dict[str, Any]:
    """Latency from the smallest arrays; efficiency from how much longer the others take.

    A larger array that was measured faster than a smaller one is taken to be as slow: what the
    smaller one lost there was noise or a change of algorithm, and time grows with size.
    """
    latency_s = min(time for _, time in figure.times) * 1e-6
    large = [(size, time) for size, time in figure.times if size >= SMALLEST_BYTES]
    sizes = [size for size, _ in large]
    beyond = accumulate((max(time * 1e-6 - latency_s, 0.05 * latency_s) for _, time in large), max)
    efficiency = [
        wire_bytes(measured_collective(kind, size, figure.num_ranks)) / (bandwidth * beyond_s)
        for size, beyond_s in zip(sizes, beyond, strict=True)
    ]
    return {
        "num_ranks": figure.num_ranks,
        "latency": f"{latency_s * 1e6:.4g} us",
        "array_bytes": [f"{size} B" for size in sizes],
        "efficiency": [round_significant(min(fraction, 1.0), 5) for fraction in efficiency],
    }


def measured_collective(
    kind: CollectiveKind, array_bytes: int, num_ranks: int, num_nodes: int = 1
) -> Collective:
    """A collective of ranks that are spread evenly over the nodes."""
    # A benchmark has no mesh; durations depend on the group's sizes, not on its axis.
    return Collective(kind, array_bytes, Group(("tp",), num_ranks, num_ranks // num_nodes))
