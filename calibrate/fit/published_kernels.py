"""Fit bandwidths and the latency of memory-bound kernels to published times."""

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
    """Fraction of the memory bandwidth that a kernel reaches, forward or backward (`way`)."""

    name: str
    way: str
    fraction: float
    comparison: Comparison
    source: str


class KernelFit:
    """Memory-bound kernels, fitted to published figures.

    The card may have had a different memory bandwidth than the profile's GPU, so the profile uses
    the fraction and not the bandwidth.

    Attributes:
        fraction: fraction of the memory bandwidth that all kernels reach.
        latency_s: seconds of a small kernel.
        named: kernels with their own fraction, net of the latency.
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
    """Return the median fraction of the bandwidth, net of the latency; its errors; its source."""
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
    """Return the latency: a kernel's time without the time to move its bytes.

    Fits a line to one kernel's times by size, with least squares of relative errors. The intercept
    is the latency, and the slope the inverse of the bandwidth.
    """
    points = figures.small_kernels.points
    num_bytes = np.array([size for size, _ in points], dtype=float)
    times_us = np.array([us for _, us in points])
    weighted = np.column_stack((np.ones_like(num_bytes), num_bytes)) / times_us[:, None]
    (latency_us, us_per_byte), *_ = np.linalg.lstsq(weighted, np.ones_like(times_us), rcond=None)
    rows = ((f"{size} bytes", us, float(latency_us + us_per_byte * size)) for size, us in points)
    latency_s = round_significant(float(latency_us) * 1e-6, 3)
    return latency_s, Comparison.of("a small memory-bound kernel", "us", rows)
