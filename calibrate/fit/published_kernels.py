"""Fits the bandwidths of memory-bound kernels and their latency to published times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from calibrate.fit.figures import FiguresOfParts, Kernels, KernelTime
from calibrate.fit.numbers import round_significant
from simtrain.comparison import Comparison


@dataclass(frozen=True, slots=True)
class NamedKernel:
    """The fraction of the memory bandwidth that a kernel reaches one way."""

    name: str
    way: str
    fraction: float
    comparison: Comparison
    source: str


class KernelFit:
    """Memory-bound kernels, fitted to published figures.

    Kernels may have run on a card with other memory than the profile's: the fraction of its
    bandwidth is carried over, not the bandwidth.

    Attributes:
        fraction: fraction of the memory bandwidth that all kernels reach.
        latency_s: seconds of a small kernel.
        named: kernels with a fraction of their own, beyond the latency.
        comparisons: the errors of all kernels, of small ones, and of the named ones.
    """

    def __init__(self, figures: FiguresOfParts) -> None:
        points = figures.kernels.points
        self.fraction, kernels, _ = _fraction("memory-bound kernels", figures.kernels, points)
        self.latency_s, small = _latency(figures)
        self.named = []
        for section in (figures.kernels, *figures.further_kernels):
            for name, way, points in section.ways():
                title = f"{name.replace('_', ' ')} {way}"
                fitted = _fraction(title, section, points, self.latency_s)
                self.named.append(NamedKernel(name, way, *fitted))
        self.comparisons = [kernels, small, *(kernel.comparison for kernel in self.named)]


def _fraction(
    title: str, section: Kernels, points: Sequence[KernelTime], latency_s: float = 0.0
) -> tuple[float, Comparison, str]:
    """The median fraction of the bandwidth beyond the latency, its errors, and its source."""
    at_peak_s = [num_bytes / section.memory_bandwidth.value for _, num_bytes, _ in points]
    fraction = round_significant(
        median(
            least_s / max(us * 1e-6 - latency_s, least_s)
            for least_s, (*_, us) in zip(at_peak_s, points, strict=True)
        )
    )
    rows = (
        (f"{name}, {num_bytes} bytes", us, (latency_s + least_s / fraction) * 1e6)
        for (name, num_bytes, us), least_s in zip(points, at_peak_s, strict=True)
    )
    return fraction, Comparison.of(title, "us", rows), section.source


def _latency(figures: FiguresOfParts) -> tuple[float, Comparison]:
    """Time of a kernel in addition to moving its bytes.

    A straight line through the times of one kernel over its bytes, relative errors squared; the
    slope is the kernel's bandwidth, and the intercept the latency.
    """
    points = figures.small_kernels.points
    num_bytes = np.array([size for size, _ in points], dtype=float)
    times_us = np.array([us for _, us in points])
    weighted = np.column_stack((np.ones_like(num_bytes), num_bytes)) / times_us[:, None]
    (latency_us, us_per_byte), *_ = np.linalg.lstsq(weighted, np.ones_like(times_us), rcond=None)
    rows = ((f"{size} bytes", us, float(latency_us + us_per_byte * size)) for size, us in points)
    latency_s = round_significant(float(latency_us) * 1e-6, 3)
    return latency_s, Comparison.of("a small memory-bound kernel", "us", rows)
