"""Fits the two bandwidths of memory-bound kernels, and the latency of each, to records of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scipy.optimize import minimize

from calibrate.fit.checks import require
from calibrate.fit.residuals import Residual, Residuals, round_significant
from calibrate.records.schema import KernelRecord
from simtrain.errors import InputError, Problem

_FUSED, _STREAM = 4, 2
"""Kernels that a fit needs."""


@dataclass(frozen=True, slots=True)
class KernelFit:
    """Bandwidths in bytes/s and seconds a kernel; no bandwidth is above `memory_bytes_per_s`."""

    memory_bytes_per_s: float
    fused_bytes_per_s: float
    stream_bytes_per_s: float
    latency_s: float
    fused: Residuals
    stream: Residuals


def fit_kernels(records: Sequence[KernelRecord], datasheet_bytes_per_s: float | None) -> KernelFit:
    """Fused kernels decide their bandwidth and the latency, copies and optimizers their own.

    The memory is the datasheet's, or else as fast as the fastest kernel: what short kernels would
    reach if they were longer is not known.

    Raises:
        InputError: E720, too few kernels; E721, most large ones are faster than the datasheet.
    """
    fused = [record for record in records if record.family == "fused"]
    stream = [record for record in records if record.family == "stream"]
    require("fused kernels", len(fused), _FUSED, "kernels")
    require("copies and optimizer steps", len(stream), _STREAM, "kernels")
    if datasheet_bytes_per_s is not None:
        _check_not_cached(records, datasheet_bytes_per_s)
    memory = datasheet_bytes_per_s or max(_rate(record) for record in records)
    fused_bandwidth, latency_s = _fit_line(fused, memory)
    stream_bandwidth = _fit_bandwidth(stream, latency_s, memory)
    return KernelFit(
        memory,
        fused_bandwidth,
        stream_bandwidth,
        latency_s,
        _residuals("fused kernels", fused, fused_bandwidth, latency_s),
        _residuals("copies and optimizer steps", stream, stream_bandwidth, latency_s),
    )


def _fit_line(records: Sequence[KernelRecord], limit: float) -> tuple[float, float]:
    """Bandwidth, no more than `limit`, and latency, from the mean |log(fitted / measured)|.

    So one odd kernel does not bend the fit. The search starts at the larger kernels' rates and
    half the shortest time.
    """
    start = (
        median(_rate(record) for record in _larger_half(records)),
        0.5 * min(record.time.median_s for record in records),
    )

    def line(x: Sequence[float]) -> tuple[float, float]:
        return min(x[0] * start[0], limit), x[1] * start[1]

    def loss(x: Sequence[float]) -> float:
        if min(x) <= 0:
            return math.inf
        bandwidth, latency_s = line(x)
        errors = (
            abs(math.log((latency_s + r.num_bytes / bandwidth) / r.time.median_s)) for r in records
        )
        return math.fsum(errors) / len(records)

    options = {"maxiter": 2000, "xatol": 1e-6, "fatol": 1e-10}
    found = minimize(loss, (1.0, 1.0), method="Nelder-Mead", options=options).x
    bandwidth, latency_s = line([float(value) for value in found])
    return _rounded(bandwidth, limit), round_significant(latency_s, 3)


def _fit_bandwidth(records: Sequence[KernelRecord], latency_s: float, limit: float) -> float:
    """The median rate beyond the latency of those that are not mostly latency."""
    long = [r for r in records if r.time.median_s > 2 * latency_s]
    rates = [r.num_bytes / (r.time.median_s - latency_s) for r in long]
    return _rounded(median(rates or [_rate(record) for record in records]), limit)


def _rounded(bandwidth: float, limit: float) -> float:
    """To four digits, and not above the limit by rounding."""
    return min(round_significant(bandwidth), limit)


def _rate(record: KernelRecord) -> float:
    """Bytes/s, latency and all."""
    return record.num_bytes / record.time.median_s


def _larger_half(records: Sequence[KernelRecord]) -> Sequence[KernelRecord]:
    return sorted(records, key=lambda record: record.num_bytes)[len(records) // 2 :]


def _check_not_cached(records: Sequence[KernelRecord], limit: float) -> None:
    """Raises InputError where the larger kernels are, at the median, faster than the memory."""
    reached = median(_rate(record) for record in _larger_half(records))
    if reached <= limit:
        return
    message = f"the larger kernels ran at {reached / 1e12:.4g} TB/s"
    reason = f"the datasheet's memory gives {limit / 1e12:.4g} TB/s: a cache served them"
    fix = "measure kernels of more bytes than the caches hold"
    raise InputError([Problem("E721", message, None, reason, fix)])


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
