"""Fits the two bandwidths of memory-bound kernels, and the latency of each, to records of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scipy.optimize import minimize

from calibrate.measured_checks import require
from calibrate.records import KernelRecord
from calibrate.residuals import Residual, Residuals, round_significant
from simtrain.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class KernelFit:
    """Bandwidths in bytes/s and seconds a kernel; `highest_bytes_per_s` any of them reached."""

    fused_bytes_per_s: float
    stream_bytes_per_s: float
    latency_s: float
    highest_bytes_per_s: float
    fused: Residuals
    stream: Residuals


def fit_kernels(records: Sequence[KernelRecord], memory_bytes_per_s: float) -> KernelFit:
    """Fused kernels decide their bandwidth and the latency, copies and optimizers their own.

    The mean |log(fitted / measured)| is minimised: one odd kernel does not bend the fit.

    Raises:
        InputError: E720, too few kernels; E721, a bandwidth above `memory_bytes_per_s`.
    """
    fused = [record for record in records if record.family == "fused"]
    stream = [record for record in records if record.family == "stream"]
    require("fused kernels", len(fused), 4, "kernels")
    require("copies and optimizer steps", len(stream), 2, "kernels")
    fused_bandwidth, latency_s = _fit_line(fused)
    stream_bandwidth = _fit_bandwidth(stream, latency_s)
    for name, bandwidth in (("fused", fused_bandwidth), ("stream", stream_bandwidth)):
        if bandwidth > memory_bytes_per_s:
            raise InputError([_above(name, bandwidth, memory_bytes_per_s)])
    return KernelFit(
        fused_bandwidth,
        stream_bandwidth,
        latency_s,
        max(record.num_bytes / record.time.median_s for record in records),
        _residuals("fused kernels", fused, fused_bandwidth, latency_s),
        _residuals("copies and optimizer steps", stream, stream_bandwidth, latency_s),
    )


def _fit_line(records: Sequence[KernelRecord]) -> tuple[float, float]:
    """Bandwidth and latency; from the largest kernels' rates and half the shortest time."""
    largest = sorted(records, key=lambda record: record.num_bytes)[len(records) // 2 :]
    start = (
        median(record.num_bytes / record.time.median_s for record in largest),
        0.5 * min(record.time.median_s for record in records),
    )

    def loss(x: Sequence[float]) -> float:
        if min(x) <= 0:
            return math.inf
        errors = (
            abs(math.log((x[1] * start[1] + r.num_bytes / (x[0] * start[0])) / r.time.median_s))
            for r in records
        )
        return math.fsum(errors) / len(records)

    options = {"maxiter": 2000, "xatol": 1e-6, "fatol": 1e-10}
    x = minimize(loss, (1.0, 1.0), method="Nelder-Mead", options=options).x
    return round_significant(float(x[0]) * start[0]), round_significant(float(x[1]) * start[1], 3)


def _fit_bandwidth(records: Sequence[KernelRecord], latency_s: float) -> float:
    """The median rate beyond the latency of those that are not mostly latency."""
    long = [r for r in records if r.time.median_s > 2 * latency_s]
    rates = [r.num_bytes / (r.time.median_s - latency_s) for r in long]
    return round_significant(median(rates or [r.num_bytes / r.time.median_s for r in records]))


def _residuals(
    title: str, records: Sequence[KernelRecord], bandwidth: float, latency_s: float
) -> Residuals:
    rows = [
        Residual(
            f"{record.name}, {record.num_bytes} bytes",
            record.time.median_s * 1e6,
            (latency_s + record.num_bytes / bandwidth) * 1e6,
        )
        for record in records
    ]
    return Residuals(title, "us", rows)


def _above(name: str, bandwidth: float, limit: float) -> Problem:
    return Problem(
        "E721",
        f"{name} kernels are fitted to {bandwidth / 1e12:.4g} TB/s",
        reason=f"the datasheet's memory gives {limit / 1e12:.4g} TB/s: a cache served them",
        fix="measure kernels of more bytes than the caches hold",
    )
