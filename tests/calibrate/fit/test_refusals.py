"""Warnings, refusals and notes of fits: large errors, overlap, hosts and data types."""

import math
from typing import Any

import pytest

from calibrate.fit.doubts import Doubt, Sifted, datasheet_of, far_off, sift, uncertainty_entry
from calibrate.fit.from_records import fit_measurements
from calibrate.fit.links import fit_slowdown
from calibrate.fit.result import Fit
from calibrate.records.schema import (
    AttentionRecord,
    GemmRecord,
    HostRecord,
    KernelRecord,
    LaunchRecord,
    Measurement,
    OverlapRecord,
    name_of,
)
from simtrain.base.accuracy import ErrorTable
from tests.helpers.measured_records import DEVICE, header, took, unproductive

pytestmark = pytest.mark.slow


def fitted(records: list[Measurement], **changes: Any) -> Fit:
    return fit_measurements(header(**changes), records, "mine")


def off_by(*factors: float) -> ErrorTable:
    return ErrorTable.of("parts", "us", ((f"part {f}", 10.0, 10.0 * f) for f in factors))


def test_good_fits_pass_and_poor_fits_warn() -> None:
    assert [len(far_off([off_by(factor)])) for factor in (1.33, 1.34)] == [0, 1]
    (warning,) = far_off([off_by(1.0), off_by(2.0, 1.0, 3.9)])
    assert warning.startswith("parts: the fit is off by a factor 1.98 in the mean")
    assert warning.endswith("part 3.9, measured 10 and fitted 39 us")


def test_what_no_machine_can_have_is_left_out_and_the_noisiest_of_the_rest() -> None:
    """Above 312 TFLOP/s or 2.039 TB/s of an A100; of eight kernels at most two spread too much."""
    sheet = datasheet_of(DEVICE)

    def kernel(num_bytes: int, seconds: float, spread: float = 0.0) -> KernelRecord:
        time, name = took(seconds, spread), f"copy {num_bytes}"
        return KernelRecord(name=name, family="stream", num_bytes=num_bytes, time=time)

    def product(rate: float, **changes: Any) -> GemmRecord:
        return GemmRecord(m=4096, n=4096, k=4096, time=took(2 * 4096**3 / rate), **changes)

    attention: Any = {"heads": 32, "seq_length": 4096, "head_size": 64}
    flops = 2 * 32 * 4096**2 * 64  # forward, of half the scores; the gradient has 5/2 of them
    slow, fast = (
        AttentionRecord(**attention, forward=took(flops / 3e14), backward=took(2.5 * flops / rate))
        for rate in (3.1e14, 3.2e14)
    )
    fine = [product(3.11e14), product(4e14, dtype="fp8"), slow]
    above = [product(3.13e14, layout="NN"), fast]
    cached = [kernel(1 << power, 1e-6) for power in (10, 23)]  # a small one may be from a cache
    spreads = [kernel(1 << power, 1e-3, power / 10) for power in (11, 12, 13, 22, 24, 25)]
    records = [*fine, *above, *cached, *spreads]
    found = sift(records, sheet)
    assert found.kept == [*fine, cached[0], *spreads[:4]]
    assert [each.name for each in found.doubts] == [
        *(name_of(above[0]), "a record of kind attention", name_of(cached[1])),
        *map(name_of, spreads[4:]),
    ]
    assert found.num_noisy == 4 and found.doubtful_share == (5 + 4) / len(records)


def test_the_uncertainty_is_of_nine_of_ten_points_and_the_median_spread() -> None:
    table = ErrorTable.of("t", "s", (("", 1.0, math.exp(part / 100)) for part in range(1, 11)))
    kept: Any = [LaunchRecord(time=took(1.0, spread)) for spread in (0.3, 0.01, 0.02)]
    sifted = Sifted(kept, [Doubt("one", "of four")], 0)

    def stated(shown: list[ErrorTable], num_copied: int = 0) -> float:
        return float(uncertainty_entry(shown, sifted, num_copied)["value"])

    within = 1.25 * math.hypot(0.09, 0.02)
    assert stated([table]) == pytest.approx(math.expm1(within), rel=0.02)
    copied = 1.25 * math.hypot(0.09, 0.02, math.log(2))
    assert stated([table], 3) == pytest.approx(math.expm1(copied), rel=0.02)
    assert stated([]) == pytest.approx(math.expm1(1.25 * math.hypot(math.log(2), 0.02)), rel=0.02)
    assert stated([off_by(1e9)]) == 99
    assert uncertainty_entry([off_by(1.0)], Sifted([], [], 0), 0)["value"] == 0.05


def beside(compute: float, collective: float) -> OverlapRecord:
    return OverlapRecord(
        what=f"{compute} and {collective}",
        compute_alone=took(1.0),
        compute_beside=took(compute),
        collective_alone=took(2.0),
        collective_beside=took(2 * collective),
    )


def test_the_slowdown_is_the_median_with_its_spread() -> None:
    """The means of both slowdowns are 0.2, 0.3 and 0.7. A speed-up counts as no slowdown."""
    records = [beside(1.1, 1.3), beside(1.2, 1.4), beside(1.4, 2.0)]
    slowdown, residuals = fit_slowdown(records)
    assert slowdown == pytest.approx(0.3)
    assert [row.measured for row in residuals.rows] == pytest.approx([1.2, 1.3, 1.7])
    assert residuals.mean_abs_error == pytest.approx((1.3 / 1.2 - 1 + 1 - 1.3 / 1.7) / 3)
    assert fit_slowdown([beside(0.9, 0.9)])[0] == 0.0
    assert fit_slowdown([beside(2.5, 2.5)])[0] == 1.0
    data = fitted([*unproductive(), *records]).data["overlap"]["slowdown"]
    assert data["fitted_on"].startswith("3 points, mean |error| 10.6%")


def host(to_device: float, to_host: float, adam: float) -> list[Measurement]:
    rates = {"to_device": to_device, "to_host": to_host, "adam": adam}
    return [
        HostRecord(what=what, num_bytes=size, time=took(size / rate))  # type: ignore[arg-type]
        for what, rate in rates.items()
        for size in (16 << 20, 64 << 20)
    ]


def test_the_fit_recovers_the_hosts_copies_and_adam() -> None:
    profile = fitted([*unproductive(), *host(24e9, 26e9, 5e9)]).profile
    assert profile.host_link is not None
    assert profile.host_link.bandwidth.value == pytest.approx(25e9)
    assert profile.host_link.adam_bandwidth.value == pytest.approx(5e9)
    assert profile.host_link.bandwidth.fitted_on == "4 points, mean |error| 4.0%, worst 4.0%"
    assert "all ranks at once" in profile.host_link.adam_bandwidth.source


def test_a_copy_that_contradicts_others_is_set_aside() -> None:
    faster = HostRecord(what="to_host", num_bytes=1 << 30, time=took(1e-4))
    fit = fitted([*unproductive(), *host(24e9, 26e9, 5e9), faster])
    assert fit.profile.host_link is not None
    assert fit.profile.host_link.bandwidth.value == pytest.approx(25e9)
    (doubt,) = fit.doubts
    assert doubt.name == "to_host of 1073741824 bytes"
    assert "time grows with work" in doubt.reason
