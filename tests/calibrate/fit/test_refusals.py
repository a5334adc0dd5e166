"""Warnings, refusals and notes of fits: large errors, overlap, hosts and data types."""

from dataclasses import replace
from typing import Any

import pytest

from calibrate.fit.doubts import far_off
from calibrate.fit.from_records import fit_measurements
from calibrate.fit.links import fit_slowdown
from calibrate.fit.result import Fit, profile_text
from calibrate.records.schema import (
    CollectiveRecord,
    HostRecord,
    KernelRecord,
    Measurement,
    OverlapRecord,
)
from simtrain.base.accuracy import Comparison
from simtrain.base.entry import Entry
from simtrain.durations.gemm import GemmMachine
from simtrain.hardware.profile import HardwareProfile
from simtrain.views.view import Facts, Paragraphs
from tests.helpers.measured_records import A100, alone, gemm, header, kernels, linked, took, without

pytestmark = pytest.mark.slow


def fitted(records: list[Measurement], **changes: Any) -> Fit:
    return fit_measurements(header(**changes), records, "mine")


def off_by(*factors: float) -> Comparison:
    return Comparison.of("parts", "us", ((f"part {f}", 10.0, 10.0 * f) for f in factors))


def test_the_mean_factor_is_a_geometric_mean() -> None:
    """Twice the time and half the time are equally far off."""
    assert off_by(2.0, 0.5).mean_factor == pytest.approx(2.0)
    assert off_by(4.0, 1.0).mean_factor == pytest.approx(2.0)
    assert off_by(1.0, 0.2, 3.0).worst.name == "part 0.2"


def test_good_fits_pass_and_poor_fits_warn() -> None:
    assert far_off([off_by(1.3, 1.3)]) == []
    (warning,) = far_off([off_by(1.0), off_by(2.0, 1.0, 3.9)])
    assert warning.startswith("parts: the fit is off by a factor 1.98 in the mean")
    assert warning.endswith("part 3.9, measured 10 and fitted 39 us")


def scattered(factor: float) -> list[Measurement]:
    """Return two kernels of each size, the second of which takes `factor` times as long."""
    names = ("one", "another")
    return [
        record.model_copy(
            update={
                "name": f"{names[turn]} {record.name}",
                "time": took(record.time.median_s * factor**turn),
            }
        )
        for record in kernels(1.5e12, 1.6e12, 3e-6)
        for turn in range(2)
        if isinstance(record, KernelRecord)
    ]


@pytest.mark.ci
def test_the_worse_the_fit_the_wider_is_its_statement() -> None:
    """Half of the kernels take `factor` times as long, so the mean factor of any line is at least
    the root of `factor`.
    """
    says = []
    for factor in (1.0, 9.0, 100.0):
        fit = fitted([*without(KernelRecord, alone()), *scattered(factor)])
        warned = any(warning.startswith("fused kernels: ") for warning in fit.warnings)
        assert warned == (factor > 1)
        assert fit.profile.uncertainty is not None
        says.append(fit.profile.uncertainty.value)
    assert says[0] < 0.1 < 1 < says[1] < says[2]


def test_a_good_fit_has_no_warnings() -> None:
    assert fitted([*alone(), *linked()], num_ranks=8, backend="nccl").warnings == []


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
    data = fitted([*alone(), *records]).data["overlap"]["slowdown"]
    assert data["fitted_on"].startswith("3 points, mean |error| 10.6%")


def host(to_device: float, to_host: float, adam: float) -> list[Measurement]:
    rates = {"to_device": to_device, "to_host": to_host, "adam": adam}
    return [
        HostRecord(what=what, num_bytes=size, time=took(size / rate))  # type: ignore[arg-type]
        for what, rate in rates.items()
        for size in (16 << 20, 64 << 20)
    ]


def test_the_fit_recovers_the_hosts_copies_and_adam() -> None:
    profile = fitted([*alone(), *host(24e9, 26e9, 5e9)]).profile
    assert profile.host_link is not None
    assert profile.host_link.bandwidth.value == pytest.approx(25e9)
    assert profile.host_link.adam_bandwidth.value == pytest.approx(5e9)
    assert profile.host_link.bandwidth.fitted_on == "4 points, mean |error| 4.0%, worst 4.0%"
    assert "all ranks at once" in profile.host_link.adam_bandwidth.source


def test_a_note_explains_a_missing_host_link() -> None:
    (note,) = fitted(alone()).notes
    assert note.startswith("host_link: none, ") and "(kernels)" in note
    cpu = fitted(alone(), software={"torch": "2.13.0"})
    assert [note.startswith("host_link: none, a CPU ") for note in cpu.notes] == [True]
    assert cpu.profile.host_link is None


def test_incomplete_records_of_a_host_leave_the_profile_without_its_section() -> None:
    fit = fitted([*alone(), *host(24e9, 26e9, 5e9)[:4]])
    assert fit.profile.host_link is None
    (note,) = fit.notes
    assert "0 measured Adam steps of the host are too few" in note


def test_a_copy_that_contradicts_others_is_set_aside() -> None:
    faster = HostRecord(what="to_host", num_bytes=1 << 30, time=took(1e-4))
    fit = fitted([*alone(), *host(24e9, 26e9, 5e9), faster])
    assert fit.profile.host_link is not None
    assert fit.profile.host_link.bandwidth.value == pytest.approx(25e9)
    (doubt,) = fit.doubts
    assert doubt.name == "to_host of 1073741824 bytes"
    assert "time grows with work" in doubt.reason


def test_products_in_other_data_types_are_listed_and_not_fitted() -> None:
    machine = GemmMachine.of(A100)
    others = [gemm(machine, m=2048, n=n, k=4096, dtype="fp16") for n in (2048, 4096)]
    fit = fitted([*alone(), *others])
    assert fit.data == fitted(alone()).data
    (series,) = fit.unused
    assert (series.what, series.num_records) == ("fp16 products", 2)
    assert series.reached.endswith(" TFLOP/s")
    assert series.why.endswith(" bf16")


def test_concurrent_groups_in_a_node_are_compared_with_one_group() -> None:
    records = linked()
    twice = [
        record.model_copy(update={"num_groups": 2, "time": took(2 * record.time.median_s)})
        for record in records
        if isinstance(record, CollectiveRecord) and record.num_ranks == 2
    ]
    fit = fitted([*alone(), *records, *twice], num_ranks=8, backend="nccl")
    (check,) = fit.checks
    assert check.title.startswith("groups at once inside a node")
    assert len(check.rows) == 50
    assert all(row.error == pytest.approx(-0.5, abs=0.05) for row in check.rows)


def fitted_entries(profile: HardwareProfile) -> list[Entry[Any]]:
    sections = (getattr(profile, name) for name in type(profile).model_fields)
    found = [value for section in sections for value in getattr(section, "__dict__", {}).values()]
    return [value for value in found if isinstance(value, Entry) and " points: " in value.source]


def test_every_fitted_entry_states_its_residuals() -> None:
    records = [*alone(), *linked(), *host(24e9, 26e9, 5e9)]
    entries = fitted_entries(fitted(records, num_ranks=8, backend="nccl").profile)
    # Products 10, kernels 3, launches, copies and Adam, overlap, four collectives.
    assert len(entries) == 10 + 3 + 1 + 2 + 1 + 4
    for entry in entries:
        assert entry.fitted_on is not None, entry.source
        assert " points, " in entry.fitted_on


def test_a_measured_profile_explains_how_to_change_it() -> None:
    data = fitted(alone()).data
    lines = profile_text(data, "my_node --name mine", measured=True).splitlines()
    comment = [line for line in lines if line.startswith("#")]
    assert "measure" in comment[2]
    assert not any("figures" in line for line in comment)
    assert all(len(line) <= 100 for line in comment)
    figures = profile_text(data, "figures.yaml").splitlines()
    assert figures[3].startswith("# figures and fit again.")


def test_a_fit_begins_with_its_warnings_and_says_what_to_do_next() -> None:
    fit = fitted([*alone(), *linked()], num_ranks=8, backend="nccl")
    worse = replace(fit, warnings=["parts: far off", "others: far off"])
    warnings, summary, notes = worse.view("validate it").parts
    assert isinstance(warnings, Paragraphs) and isinstance(summary, Facts)
    assert warnings.texts == ["Warning: parts: far off", "Warning: others: far off"]
    facts = {name: str(said) for name, said in summary.rows}
    num_figures = sum(len(part.rows) for part in fit.residuals)
    assert facts["fitted"].startswith(f"{num_figures} figures of ")
    assert [*facts][-1] == "next" and facts["next"] == "validate it"
    assert isinstance(notes, Paragraphs) and notes.texts[-1] == "All figures: --details."


def test_details_of_a_fit_have_every_part() -> None:
    fit = fitted([*alone(), *linked()], num_ranks=8, backend="nccl")
    tables = fit.view("", details=True).tables
    assert {part.title for part in (*fit.residuals, *fit.checks)} <= {*tables}
    assert not fit.view("").tables
