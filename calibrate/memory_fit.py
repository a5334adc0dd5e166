"""Fits the bandwidth that memory-bound kernels reach."""

from __future__ import annotations

from statistics import median

from calibrate.figures import Figures
from calibrate.residuals import Residual, Residuals, round_significant


def fit_kernels(figures: Figures) -> tuple[float, Residuals]:
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
