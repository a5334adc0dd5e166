"""From records to a profile: the fit recovers a known machine, and bad records are refused."""

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from calibrate.fit import from_records
from calibrate.fit.base import Base
from calibrate.fit.from_records import fit_measurements
from calibrate.fit.layers import InSitu
from calibrate.fit.links import measured_collective
from calibrate.fit.result import MEASURED, Fit, profile_text
from calibrate.records.schema import (
    GemmRecord,
    KernelRecord,
    LaunchRecord,
    LayerRecord,
    Measurement,
)
from simtrain.base.entry import Entry
from simtrain.durations.collectives import ring_seconds
from simtrain.durations.model import GemmMachine, gemm_seconds
from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.work import RING_COLLECTIVES, Gemm
from tests.helpers.measured_records import (
    A100,
    DEVICE,
    LAYER,
    alone,
    gemms,
    header,
    kernels,
    linked,
    took,
    unproductive,
    without,
)

pytestmark = pytest.mark.slow


def fitted(records: list[Measurement], base: Base | None = None, **changes: Any) -> Fit:
    return fit_measurements(header(**changes), records, "mine", base)


@pytest.fixture(scope="module")
def one_gpu() -> Fit:
    return fitted(alone())


def test_the_fit_recovers_the_gpu_that_made_the_records(one_gpu: Fit) -> None:
    profile = one_gpu.profile
    found = {residuals.title: residuals for residuals in one_gpu.residuals}
    assert found["matrix products by shape"].mean_abs_error < 0.02
    assert found["products added into fp32"].mean_abs_error < 0.03
    assert found["batched products"].mean_abs_error < 0.05
    assert found["fused kernels"].max_abs_error < 0.01
    assert profile.memory_bound.fused_bandwidth.value == pytest.approx(1.516e12, rel=0.06)
    assert profile.memory_bound.stream_bandwidth.value == pytest.approx(1.61e12, rel=0.01)
    assert profile.memory_bound.kernel_latency.value == pytest.approx(3e-6, rel=0.02)
    assert profile.gemm.sustained_flops.value == pytest.approx(253.5e12, rel=0.01)
    assert profile.host.issue.value == 7e-6
    assert profile.memory.allocator_reserve.value == 2 * 2**30
    assert profile.memory.fragmentation.value == pytest.approx(0.05)


def test_in_situ_speeds_are_fitted_on_plain_layers_that_are_not_held_out(one_gpu: Fit) -> None:
    found = {residuals.title: residuals for residuals in one_gpu.residuals}
    assert len(found["plain layers"].rows) == 2
    assert found["plain layers"].max_abs_error < 0.03
    without = fitted([record for record in alone() if not isinstance(record, LayerRecord)])
    assert without.profile.gemm.in_situ_speed.value == 1.0
    assert "no plain layer to fit" in without.profile.gemm.in_situ_speed.source


def test_every_number_states_its_source(one_gpu: Fit, snapshot: SnapshotAssertion) -> None:
    node = fitted([*unproductive(), *linked()], num_ranks=8, backend="nccl")
    for fit in (one_gpu, node):
        text = profile_text(fit.data, "a folder", MEASURED)
        assert re.sub(r"\d[\d.e+-]*", "#", text) == snapshot
        assert fit.notes == snapshot


def test_a_profile_without_links_simulates_one_gpu_and_refuses_more(one_gpu: Fit) -> None:
    profile = one_gpu.profile
    assert profile.intra_node is None
    assert profile.inter_node is None
    assert profile.cluster.num_gpus == 1
    result = simulate(Scenario.model_validate(LAYER), profile)
    assert result.iteration_time_s > 0
    two = LAYER | {"parallelism": {"tensor": 2}}
    with pytest.raises(InputError, match="E317"):
        simulate(Scenario.model_validate(two), profile)


def test_a_profile_of_a_node_has_the_measured_curves() -> None:
    node = fitted([*alone(), *linked()], num_ranks=8, backend="nccl").profile
    assert node.cluster.gpus_per_node.value == 8
    assert node.inter_node is None
    assert A100.intra_node is not None
    assert node.intra_node is not None
    for kind in RING_COLLECTIVES:
        known, found = (getattr(links, kind).value for links in (A100.intra_node, node.intra_node))
        assert [curve.num_ranks for curve in found] == [2, 4, 8]
        for ours, theirs in zip(found, known, strict=True):
            op = measured_collective(kind, 1 << 26, ours.num_ranks)
            expected = ring_seconds(op, theirs, 300e9)
            assert ring_seconds(op, ours, 300e9) == pytest.approx(expected, rel=0.01)
    assert node.intra_node.all_to_all is not None
    assert node.intra_node.all_to_all.value == node.intra_node.reduce_scatter.value
    assert node.intra_node.point_to_point.efficiency.value == pytest.approx(250 / 300, rel=0.02)
    assert node.overlap.slowdown.value == pytest.approx(0.2)
    on_two = LAYER | {"parallelism": {"tensor": 2}}
    assert simulate(Scenario.model_validate(on_two), node).iteration_time_s > 0


def test_fp8_products_are_fitted_separately(one_gpu: Fit) -> None:
    assert one_gpu.profile.gemm.by_dtype.fp8 is None
    machine = GemmMachine.of(one_gpu.profile)
    twice = machine.replace(
        mainloop_flops=1.9 * machine.mainloop_flops, sustained_flops=2 * machine.sustained_flops
    )
    records = [
        GemmRecord(m=m, n=n, k=k, dtype="fp8", time=took(gemm_seconds(op, twice)))
        for m, n, k in product((2048, 4096, 8192), repeat=3)
        for op in [Gemm(m, n, k, element_bytes=1)]
    ]
    profile = fitted([*alone(), *records]).profile
    fp8 = GemmMachine.of(profile, "fp8")
    for size in (1024, 3000, 16384):
        op = Gemm(size, size, size, element_bytes=1)
        assert gemm_seconds(op, fp8) == pytest.approx(gemm_seconds(op, twice), rel=0.03)
    assert profile.gemm.mainloop_flops == one_gpu.profile.gemm.mainloop_flops


def test_borrowed_links_state_the_profile_that_they_come_from() -> None:
    links = Base.load("a100_sxm4_80gb")
    profile = fitted(unproductive(), links).profile
    assert profile.cluster.num_gpus == A100.cluster.num_gpus
    assert profile.inter_node is not None
    assert profile.intra_node is not None
    taken = "copied from a100_sxm4_80gb, not measured here: "
    for entry in (
        profile.cluster.num_nodes,
        profile.inter_node.point_to_point.latency,
        profile.intra_node.all_reduce,
        profile.overlap.slowdown,
    ):
        assert entry.source.startswith(taken)
    assert "inter_node and collectives copied from a100_sxm4_80gb" in profile.description
    node = fitted([*unproductive(), *linked()], links, num_ranks=8, backend="nccl").profile
    assert node.intra_node is not None
    assert node.intra_node.all_reduce.source.startswith("measured on")
    assert node.cluster.num_nodes.value == A100.cluster.num_nodes.value


def test_limits_of_a_device_without_datasheet_are_its_highest_measured_rates() -> None:
    """The device has two threads, 0.1 TFLOP/s and slow kernels."""
    machine = GemmMachine.of(A100).replace(
        num_sms=2,
        mainloop_flops=0.1e12,
        tile_overhead_s=50e-6,
        accumulate_overhead_s=100e-6,
        sustained_flops=0.1e12,
        memory_bytes_per_s=12e9,
        tiles=A100.gemm.tiles.value[:2],
    )
    records = [
        *gemms(machine, (256, 512, 1024), heads=4),
        *kernels(8e9, 12e9, 20e-6),
        LaunchRecord(time=took(3e-6)),
    ]
    fit = fitted(records, device="Some CPU", num_sms=2, memory_bytes=16 * 2**30)
    profile = fit.profile
    rates = [record.m for record in records if isinstance(record, GemmRecord)]
    assert len(rates) == 27 + 9 + 8
    assert profile.gpu.peak_flops.value == pytest.approx(0.1e12, rel=0.1)
    assert "no datasheet is known; the highest rate" in profile.gpu.peak_flops.source
    assert profile.gpu.memory_bandwidth.value == pytest.approx(12e9, rel=0.1)
    assert profile.memory_bound.fused_bandwidth.value == pytest.approx(8e9, rel=0.02)
    assert "a default, not measured" in profile.memory.allocator_reserve.source
    found = {residuals.title: residuals for residuals in fit.residuals}
    assert found["matrix products by shape"].mean_abs_error < 0.05


@pytest.mark.parametrize(
    ("device", "speed", "norm", "memory"),
    [
        (DEVICE, 1.5, 2.039e12, 2.039e12),
        ("Some GPU", 1.5, 2.85e12, 2.85e12),
        ("Some GPU", 0.5, 0.95e12, 1.9e12),
    ],
)
def test_no_kernel_is_faster_in_layers_than_the_memory(
    device: str, speed: float, norm: float, memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is the datasheet's, else as fast as the fastest of all that was found."""
    norms = [
        KernelRecord(name="layer norm", family="fused", num_bytes=size, time=took(size / 1.9e12))
        for size in (1 << 24, 1 << 26)
    ]
    monkeypatch.setattr(from_records, "fit_layers", lambda *_: InSitu(kernels=speed))

    profile = fitted([*alone(), *norms], device=device, backend="nccl").profile
    assert profile.memory_bound.kernels.layer_norm.forward.value == norm
    assert profile.gpu.memory_bandwidth.value == memory


def with_time(record: Any, seconds: float, spread: float = 0.0) -> Any:
    return record.model_copy(update={"time": took(seconds, spread)})


@pytest.mark.parametrize(
    ("records", "section", "why"),
    [
        (without(GemmRecord, alone()), "gemm", "0 measured bf16 products are too few"),
        (alone()[20:], "gemm", "7 measured bf16 products are too few"),
        (without(KernelRecord, alone()), "memory_bound", "0 measured fused kernels are too few"),
        (without(LaunchRecord, alone()), "host", "no launch was measured"),
    ],
)
def test_a_section_of_too_few_records_is_copied_from_the_nearest_profile(
    records: list[Measurement], section: str, why: str, one_gpu: Fit
) -> None:
    fit = fitted(records)
    own, copied = (getattr(profile, section) for profile in (fit.profile, A100))
    for (name, entry), (_, of_a100) in zip(own, copied, strict=True):
        if isinstance(entry, Entry):
            assert entry.value == of_a100.value, name
            assert entry.source.startswith(f"copied from a100_sxm4_80gb, {why}")
    assert any(
        note.startswith(f"{section}: copied from a100_sxm4_80gb, {why}") for note in fit.notes
    )
    complete = one_gpu.profile.uncertainty
    assert complete and fit.profile.uncertainty
    assert fit.profile.uncertainty.value > complete.value


def test_a_cpu_takes_nothing_from_a_gpu() -> None:
    cpu = {"device": "Some CPU", "num_sms": 2, "num_ranks": 2, "software": {"torch": "2.13.0"}}
    profile = fitted([LaunchRecord(time=took(3e-6))], **cpu).profile
    assert profile.gemm.mainloop_flops.source.startswith("copied from cpu_base, ")
    assert profile.links.bandwidth.source.startswith("copied from cpu_base, ")
    assert profile.host.issue.value == 3e-6
    assert profile.gemm.mainloop_flops.value < 1e12


def test_rates_are_fitted_by_layout() -> None:
    """Products of one layout take a third longer; so do the predictions, and no others."""
    slow = [
        with_time(record, record.time.median_s * 4 / 3).model_copy(update={"layout": "NN"})
        if isinstance(record, GemmRecord) and record.batch == 1 and not record.accumulate
        else record
        for record in alone()
    ]
    both = [record for record in slow if isinstance(record, GemmRecord) and record.layout == "NN"]
    profile = fitted([*without(LayerRecord, alone()), *both]).profile
    machine = GemmMachine.of(profile)
    shape = Gemm(4096, 4096, 4096)
    ratio = gemm_seconds(replace(shape, layout="NN"), machine) / gemm_seconds(shape, machine)
    assert ratio == pytest.approx(4 / 3, rel=0.05)
    assert gemm_seconds(replace(shape, layout="NT"), machine) <= gemm_seconds(shape, machine) * 1.2
