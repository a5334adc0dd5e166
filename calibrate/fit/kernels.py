"""Fits memory-bound kernels of GPUs, and the host of an offloaded optimizer, to records.

Kernels have two bandwidths, and the latency of each kernel; the host has one bandwidth for copies
both ways, and one for Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from calibrate.fit.entry import Data, Origin, giga
from calibrate.fit.numbers import microseconds, minimise, round_significant
from calibrate.fit.requirements import require
from calibrate.records.checks import rate_of
from calibrate.records.schema import HostRecord, KernelRecord
from simtrain.comparison import Comparison
from simtrain.errors import InputError

_FUSED, _STREAM = 4, 2
"""Kernels that a fit needs."""
_HOST_SIZES = 2
"""Sizes of each kind of work of the host that a fit needs."""
_HOST_WORK = {
    "to_device": "copies to the GPU",
    "to_host": "copies to the host",
    "adam": "Adam steps of the host",
}
_Line = tuple[float, float]
"""Bytes/s and seconds of latency."""


class KernelFit:
    """The bandwidth of fused kernels and the latency, then the bandwidth of copies and optimizers.

    The memory is the datasheet's, or else as fast as the fastest kernel: longer kernels might be
    faster, by an unknown amount.

    Attributes:
        memory_bytes_per_s: bandwidth of the memory; no other is above it.
        fused_bytes_per_s, stream_bytes_per_s: fitted bandwidths.
        latency_s: seconds that each kernel takes besides moving its bytes.
        fused, stream: the errors.

    Raises:
        InputError: E720, too few kernels; E721, most large ones are faster than the datasheet.
    """

    def __init__(
        self, records: Sequence[KernelRecord], datasheet_bytes_per_s: float | None
    ) -> None:
        fused, stream = ([r for r in records if r.family == each] for each in ("fused", "stream"))
        require("fused kernels", len(fused), _FUSED, "kernels")
        require("copies and optimizer steps", len(stream), _STREAM, "kernels")
        if datasheet_bytes_per_s:
            _check_not_cached(records, datasheet_bytes_per_s)
        self.memory_bytes_per_s = datasheet_bytes_per_s or max(map(rate_of, records))
        line = _fit_line(fused, self.memory_bytes_per_s)
        self.fused_bytes_per_s, self.latency_s = line
        # The median rate beyond the latency of kernels that are not mostly latency.
        long = [r for r in stream if r.time.median_s > 2 * self.latency_s]
        rates = [r.num_bytes / (r.time.median_s - self.latency_s) for r in long]
        rate = round_significant(median(rates or map(rate_of, stream)))
        self.stream_bytes_per_s = min(rate, self.memory_bytes_per_s)
        self.fused = _times("fused kernels", fused, line)
        stream_line = self.stream_bytes_per_s, self.latency_s
        self.stream = _times("copies and optimizer steps", stream, stream_line)


def _fit_line(records: Sequence[KernelRecord], limit: float) -> _Line:
    """Bandwidth, at most `limit`, and latency.

    The search starts at the rate of the larger kernels and half the shortest time.
    """
    start = median(map(rate_of, _larger_half(records)))
    start_s = 0.5 * min(record.time.median_s for record in records)
    bandwidth, latency_s = minimise(
        lambda x: (min(x[0] * start, limit), x[1] * start_s),
        (1.0, 1.0),
        [(record, record.time.median_s) for record in records],
        _seconds,
        digits=8,  # the line is rounded, not its ratio to the start
    )
    return min(round_significant(bandwidth), limit), round_significant(latency_s, 3)


def _seconds(record: KernelRecord, line: _Line) -> float:
    bandwidth, latency_s = line
    return latency_s + record.num_bytes / bandwidth


def _larger_half(records: Sequence[KernelRecord]) -> Sequence[KernelRecord]:
    return sorted(records, key=lambda record: record.num_bytes)[len(records) // 2 :]


def _check_not_cached(records: Sequence[KernelRecord], limit: float) -> None:
    """Raise InputError if the median of the larger kernels is faster than the memory."""
    reached = median(map(rate_of, _larger_half(records)))
    if reached > limit:
        raise InputError.of(
            "E721",
            f"the larger kernels ran at {reached / 1e12:.4g} TB/s",
            fix="measure kernels of more bytes than the caches hold",
            reason=f"the datasheet's memory gives {limit / 1e12:.4g} TB/s: a cache served them",
        )


def _times(title: str, records: Sequence[KernelRecord], line: _Line) -> Comparison:
    rows = ((f"{r.name}, {r.num_bytes} bytes", r.time.median_s, _seconds(r, line)) for r in records)
    return microseconds(title, rows)


def host_section(records: Sequence[HostRecord], origin: Origin) -> tuple[Data, list[Comparison]]:
    """The section `host_link`, one bandwidth for both ways, and its errors.

    Rates are medians per rank while all ranks of a node copy, or step their Adam.

    Raises:
        InputError: E720, too few sizes of one of the three.
    """
    for what, name in _HOST_WORK.items():
        require(name, sum(record.what == what for record in records), _HOST_SIZES, "kernels")
    bandwidth, copies = _fit_rate("copies between GPU and host", records, ("to_device", "to_host"))
    adam_bandwidth, adam = _fit_rate("Adam steps of the host", records, ("adam",))
    only = ", all ranks at once"
    section = {
        "bandwidth": origin.entry(giga(bandwidth), copies, only),
        "adam_bandwidth": origin.entry(giga(adam_bandwidth), adam, only),
    }
    return section, [copies, adam]


def _fit_rate(
    title: str, records: Sequence[HostRecord], kinds: tuple[str, ...]
) -> tuple[float, Comparison]:
    found = [record for record in records if record.what in kinds]
    rate = round_significant(median(map(rate_of, found)))
    rows = (
        (f"{_HOST_WORK[r.what]}, {r.num_bytes} bytes", r.time.median_s, r.num_bytes / rate)
        for r in found
    )
    return rate, microseconds(title, rows)
