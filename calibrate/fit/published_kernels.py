"""Fits the bandwidth that memory-bound kernels reach, and the latency that each has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from calibrate.fit.figures import FiguresOfParts, Kernels, KernelTime
from calibrate.fit.residuals import Residual, Residuals, round_significant


@dataclass(frozen=True, slots=True)
class NamedKernel:
    """The fraction of the memory bandwidth that a kernel reaches one way."""

    kernel: str
    way: str
    fraction: float
    source: str
    residuals: Residuals


def fit_kernels(figures: FiguresOfParts) -> tuple[float, Residuals]:
    """The fraction of a card's memory bandwidth that its kernels reach: the median of them.

    The kernels may have run on a card with other memory than the profile's; the fraction, not
    the bandwidth, is carried over.
    """
    peak = figures.kernels.memory_bandwidth.value
    points = figures.kernels.points
    reached = [num_bytes / (us * 1e-6) / peak for _, num_bytes, us in points]
    fraction = round_significant(median(reached))
    rows = [
        Residual(f"{name}, {num_bytes} bytes", us, num_bytes / (fraction * peak) * 1e6)
        for name, num_bytes, us in points
    ]
    return fraction, Residuals("memory-bound kernels", "us", rows)


def fit_named_kernels(figures: FiguresOfParts, latency_s: float) -> list[NamedKernel]:
    """The fraction of a card's memory bandwidth that each named kernel reaches, each way.

    It is the median of the kernel's points, whose latency is taken off.
    """
    return [
        _named_kernel(section, kernel, way, points, latency_s)
        for section in (figures.kernels, *figures.further_kernels)
        for kernel, way, points in section.ways()
    ]


def _named_kernel(
    section: Kernels, kernel: str, way: str, points: Sequence[KernelTime], latency_s: float
) -> NamedKernel:
    peak = section.memory_bandwidth.value
    at_peak_s = [num_bytes / peak for _, num_bytes, _ in points]
    times_s = [us * 1e-6 for *_, us in points]
    reached = [
        least_s / max(time_s - latency_s, least_s)
        for least_s, time_s in zip(at_peak_s, times_s, strict=True)
    ]
    fraction = round_significant(median(reached))
    rows = [
        Residual(f"{name}, {num_bytes} bytes", us, (latency_s + least_s / fraction) * 1e6)
        for (name, num_bytes, us), least_s in zip(points, at_peak_s, strict=True)
    ]
    title = f"{kernel.replace('_', ' ')} {way}"
    return NamedKernel(kernel, way, fraction, section.source, Residuals(title, "us", rows))


def fit_kernel_latency(figures: FiguresOfParts) -> tuple[float, Residuals]:
    """Seconds that a kernel takes beside moving its bytes.

    A straight line through the times of one kernel over its bytes, relative errors squared; the
    line's slope is that kernel's bandwidth, and its intercept the latency.
    """
    points = figures.small_kernels.points
    num_bytes = np.array([size for size, _ in points], dtype=float)
    times_us = np.array([us for _, us in points])
    weighted = np.column_stack((np.ones_like(num_bytes), num_bytes)) / times_us[:, None]
    (latency_us, us_per_byte), *_ = np.linalg.lstsq(weighted, np.ones_like(times_us), rcond=None)
    rows = [
        Residual(f"{size} bytes", us, float(latency_us + us_per_byte * size)) for size, us in points
    ]
    latency_s = round_significant(float(latency_us) * 1e-6, 3)
    return latency_s, Residuals("a small memory-bound kernel", "us", rows)
