"""Memory-bound kernels: each kind gets the bandwidth that its records were made with."""

from typing import Any

import pytest

from calibrate.fit.kernels import KernelFit
from calibrate.records.schema import KernelRecord
from tests.helpers.measured_records import took

LATENCY_S, MEMORY = 4e-6, 3e12
SIZES = 1 << 20, 1 << 22, 1 << 24


def records(name: str, bytes_per_s: float, family: Any = "fused") -> list[KernelRecord]:
    """A kernel of three sizes, at a bandwidth beyond the latency."""
    timed = ((size, took(LATENCY_S + size / bytes_per_s)) for size in SIZES)
    return [KernelRecord(name=name, family=family, num_bytes=n, time=time) for n, time in timed]


ALL = [
    *records("softmax", 0.8e12),
    *records("softmax gradient", 1.2e12),
    *records("rotation", 0.5e12),
    *records("bias and GeLU", 2e12),
    *records("dropout and residual", 2e12),
    *records("copy", 2.5e12, "stream"),
    *records("Adam step", 2.5e12, "stream"),
]


def test_each_kernel_has_its_own_bandwidth_beyond_one_latency() -> None:
    fit = KernelFit(ALL, MEMORY)
    assert fit.latency_s == pytest.approx(LATENCY_S, rel=1e-3)
    assert KernelFit([r for r in ALL if r.num_bytes == SIZES[0]], MEMORY).latency_s == 0
    assert fit.fused_bytes_per_s == pytest.approx(2e12, rel=1e-3)
    assert fit.stream_bytes_per_s == pytest.approx(2.5e12, rel=1e-3)
    section = fit.section("made up", 0.5)
    assert section.keys() == {"softmax", "rotary"}
    assert [section["softmax"][way]["value"] for way in ("forward", "backward")] == [
        "0.4 TB/s",
        "0.6 TB/s",
    ]
    assert section["rotary"]["forward"] == section["rotary"]["backward"]


def test_an_outlier_moves_no_other_kernel() -> None:
    slow = records("softmax", 0.01e12)
    fit = KernelFit([*slow, *ALL[len(slow) :]], MEMORY)
    assert fit.latency_s == pytest.approx(LATENCY_S, rel=1e-3)
    assert fit.fused_bytes_per_s == pytest.approx(2e12, rel=1e-3)
