"""Fits memory-bound kernels of GPUs, and the host of an offloaded optimizer.

Kernels have the bandwidth of their kind, and one latency; the host has one bandwidth for copies
both ways, and one for Adam.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

import numpy as np

from calibrate.fit.base import (
    Data,
    giga,
    measured,
    micro,
    microseconds,
    published,
    round_significant,
    tera,
)
from calibrate.fit.doubts import require
from calibrate.fit.figures import FiguresOfParts, KernelTime, KernelTimes, SmallKernelTime
from calibrate.records.schema import HostRecord, KernelRecord, rate_of
from simtrain.base.accuracy import ErrorTable

_FUSED, _STREAM = 4, 2
"""Kernels that a fit needs."""
_HOST_SIZES = 2
"""Sizes of each kind of work of the host that a fit needs."""
_HOST_WORK = {
    "to_device": "copies to the GPU",
    "to_host": "copies to the host",
    "adam": "Adam steps of the host",
}
_FORWARD, _BACKWARD = ("forward",), ("backward",)
_NAMED = {
    "layer norm": ("layer_norm", _FORWARD),
    "layer norm gradient": ("layer_norm", _BACKWARD),
    "RMS norm": ("rms_norm", _FORWARD),
    "RMS norm gradient": ("rms_norm", _BACKWARD),
    "SwiGLU": ("swiglu", _FORWARD),
    "SwiGLU gradient": ("swiglu", _BACKWARD),
    "rotation": ("rotary", _FORWARD + _BACKWARD),
    "softmax": ("softmax", _FORWARD),
    "softmax gradient": ("softmax", _BACKWARD),
    "softmax dropout": ("dropout", _FORWARD),
    "dropout gradient": ("dropout", _BACKWARD),
    "cross entropy": ("cross_entropy", _FORWARD + _BACKWARD),
}
"""Measured kernels with an entry in `memory_bound.kernels`. The gradient of a rotation is one too,
and that of the loss is passes of the same kind."""
_Line = tuple[float, float]
"""Bytes/s and seconds of latency."""


class KernelFit:
    """The latency of a kernel, then bandwidths net of it: of kernels by name, fused ones, streams.

    The memory is the datasheet's, or else as fast as the fastest kernel: longer kernels might be
    faster, by an unknown amount. No other bandwidth is above it.

    Raises:
        InputError: E720, too few kernels.
    """

    def __init__(
        self, records: Sequence[KernelRecord], datasheet_bytes_per_s: float | None
    ) -> None:
        fused, stream = ([r for r in records if r.family == each] for each in ("fused", "stream"))
        require("fused kernels", len(fused), _FUSED, "kernels")
        require("copies and optimizer steps", len(stream), _STREAM, "kernels")
        self.most_bytes_per_s = datasheet_bytes_per_s or math.inf
        self.memory_bytes_per_s = datasheet_bytes_per_s or max(map(rate_of, records))
        self.latency_s = _latency_s(records)
        others = [record for record in fused if record.name not in _NAMED] or fused
        self.fused_bytes_per_s, self.fused = self._fit("fused kernels", others)
        self.stream_bytes_per_s, self.stream = self._fit("copies and optimizer steps", stream)
        named = {name: [r for r in fused if r.name == name] for name in _NAMED}
        self.named = {name: self._fit(name, times) for name, times in named.items() if times}

    def _fit(self, title: str, records: Sequence[KernelRecord]) -> tuple[float, ErrorTable]:
        """The median rate beyond the latency, of kernels that are not mostly latency."""
        long = [r for r in records if r.time.median_s > 2 * self.latency_s]
        rates = [r.num_bytes / (r.time.median_s - self.latency_s) for r in long]
        rate = round_significant(median(rates or map(rate_of, records)))
        rate = min(rate, self.memory_bytes_per_s)
        return rate, _times(title, records, (rate, self.latency_s))

    def in_layers(self, bytes_per_s: float, speed: float) -> float:
        """A bandwidth at the speed that kernels have in layers, at most the datasheet's."""
        return min(round_significant(bytes_per_s * speed), self.most_bytes_per_s)

    def highest_bytes_per_s(self, speed: float) -> float:
        """The highest bandwidth of any kernel, alone or in layers."""
        alone = self.fused_bytes_per_s, *(rate for rate, _ in self.named.values())
        return max(self.memory_bytes_per_s, *(self.in_layers(rate, speed) for rate in alone))

    def section(self, origin: str, speed: float) -> Data:
        section = dict[str, Data]()
        for name, (rate, compared) in self.named.items():
            kernel, ways = _NAMED[name]
            made = measured(origin, compared)(tera(self.in_layers(rate, speed), "B/s"))
            section.setdefault(kernel, {}).update(dict.fromkeys(ways, made))
        return section

    @property
    def comparisons(self) -> list[ErrorTable]:
        return [self.fused, self.stream, *(compared for _, compared in self.named.values())]


def _latency_s(records: Sequence[KernelRecord]) -> float:
    """The median over kernels of the time that the line through two sizes has for no bytes."""
    intercepts = []
    for name in sorted({record.name for record in records}):
        sizes = sorted((r for r in records if r.name == name), key=lambda record: record.num_bytes)
        for small, large in itertools.pairwise(sizes):
            if large.num_bytes > small.num_bytes:
                further_s = large.time.median_s - small.time.median_s
                s_per_byte = further_s / (large.num_bytes - small.num_bytes)
                intercepts.append(small.time.median_s - s_per_byte * small.num_bytes)
    return round_significant(max(median(intercepts or [0.0]), 0.0), 3)


def _seconds(record: KernelRecord | HostRecord, line: _Line) -> float:
    bandwidth, latency_s = line
    return latency_s + record.num_bytes / bandwidth


def _times(title: str, records: Iterable[KernelRecord | HostRecord], line: _Line) -> ErrorTable:
    rows = (
        (
            f"{_HOST_WORK[r.what] if isinstance(r, HostRecord) else r.name}, {r.num_bytes} bytes",
            r.time.median_s,
            _seconds(r, line),
        )
        for r in records
    )
    return microseconds(title, rows)


def host_section(records: Sequence[HostRecord], origin: str) -> tuple[Data, list[ErrorTable]]:
    """The section `host_link`, one bandwidth for both ways, and its errors; empty without records.

    Rates are medians per rank while all ranks of a node copy, or step their Adam.

    Raises:
        InputError: E720, too few sizes of one of the three.
    """
    section, shown = dict[str, Data](), list[ErrorTable]()
    if not records:
        return section, shown
    for what, name in _HOST_WORK.items():
        require(name, sum(record.what == what for record in records), _HOST_SIZES, "kernels")
    for name, title, kinds in (
        ("bandwidth", "copies between GPU and host", ("to_device", "to_host")),
        ("adam_bandwidth", _HOST_WORK["adam"], ("adam",)),
    ):
        chosen = [record for record in records if record.what in kinds]
        rate = round_significant(median(map(rate_of, chosen)))
        shown.append(_times(title, chosen, (rate, 0.0)))
        section[name] = measured(origin, shown[-1], ", all ranks at once")(giga(rate))
    return section, shown


class PublishedKernels:
    """Memory-bound kernels of published figures: the section `memory_bound`, and its errors.

    The card may have had a different memory bandwidth than the profile's GPU, so the profile uses
    the fraction and not the bandwidth. `stream_bandwidth` is the entry of the datasheet.
    """

    def __init__(self, figures: FiguresOfParts, stream_bandwidth: Data) -> None:
        memory = figures.datasheet.gpu.memory_bandwidth.value
        title, points = "memory-bound kernels", figures.kernels.points
        self.fraction, kernels = _fraction(title, figures.kernels, points)
        self.latency_s, small = _latency(figures.small_kernels.points)
        self.comparisons = [kernels, small]

        latency = published(figures.small_kernels.source, small)(micro(self.latency_s))
        self.section: Data = {
            "fused_bandwidth": _bandwidth(self.fraction, memory, figures.kernels, kernels),
            "stream_bandwidth": stream_bandwidth,
            "kernel_latency": latency,
        }
        sections = figures.kernels, *figures.further_kernels
        for name, way, made, compared in named_kernels(sections, memory, self.latency_s):
            self.section.setdefault("kernels", {}).setdefault(name, {})[way] = made
            self.comparisons.append(compared)


def named_kernels(
    sections: Iterable[KernelTimes], memory_bytes_per_s: float, latency_s: float
) -> Iterator[tuple[str, str, Data, ErrorTable]]:
    """Yield kernels with a bandwidth of their own: name, forward or backward, entry and errors.

    Args:
        sections: measured kernels.
        memory_bytes_per_s: memory bandwidth of the profile's GPU.
        latency_s: time of a small kernel.
    """
    for section in sections:
        for name, way, points in section.ways():
            title = f"{name.replace('_', ' ')} {way}"
            fraction, compared = _fraction(title, section, points, latency_s)
            yield name, way, _bandwidth(fraction, memory_bytes_per_s, section, compared), compared


def _bandwidth(fraction: float, memory: float, section: KernelTimes, shown: ErrorTable) -> Data:
    source = f"{fraction:.3f} of the memory bandwidth, as {section.source}"
    return published(source, shown)(tera(fraction * memory, "B/s"))


def _fraction(
    title: str, section: KernelTimes, points: Sequence[KernelTime], latency_s: float = 0.0
) -> tuple[float, ErrorTable]:
    """Return the median fraction of the bandwidth, net of the latency, and its errors."""
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
    return fraction, ErrorTable.of(title, "us", rows)


def _latency(points: Sequence[SmallKernelTime]) -> tuple[float, ErrorTable]:
    """Return the latency: a kernel's time without the time to move its bytes.

    Fits a line to one kernel's times by size, with least squares of relative errors. The intercept
    is the latency, and the slope the inverse of the bandwidth.
    """
    num_bytes = np.array([size for size, _ in points], dtype=float)
    times_us = np.array([us for _, us in points])
    weighted = np.column_stack((np.ones_like(num_bytes), num_bytes)) / times_us[:, None]
    (latency_us, us_per_byte), *_ = np.linalg.lstsq(weighted, np.ones_like(times_us), rcond=None)
    rows = ((f"{size} bytes", us, float(latency_us + us_per_byte * size)) for size, us in points)
    latency_s = round_significant(float(latency_us) * 1e-6, 3)
    return latency_s, ErrorTable.of("a small memory-bound kernel", "us", rows)
