"""Warnings, refusals and notes of fits: large errors, overlap, hosts and data types."""

from typing import Any

import pytest

from calibrate.fit.doubts import far_off
from calibrate.fit.from_records import fit_measurements
from calibrate.fit.links import fit_slowdown
from calibrate.fit.result import Fit
from calibrate.records.schema import HostRecord, Measurement, OverlapRecord
from simtrain.base.accuracy import ErrorTable
from tests.helpers.measured_records import header, took, unproductive

pytestmark = pytest.mark.slow


def fitted(records: list[Measurement], **changes: Any) -> Fit:
    return fit_measurements(header(**changes), records, "mine")


def off_by(*factors: float) -> ErrorTable:
    return ErrorTable.of("parts", "us", ((f"part {f}", 10.0, 10.0 * f) for f in factors))


def test_good_fits_pass_and_poor_fits_warn() -> None:
    assert far_off([off_by(1.3, 1.3)]) == []
    (warning,) = far_off([off_by(1.0), off_by(2.0, 1.0, 3.9)])
    assert warning.startswith("parts: the fit is off by a factor 1.98 in the mean")
    assert warning.endswith("part 3.9, measured 10 and fitted 39 us")


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
