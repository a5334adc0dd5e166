"""Seconds from shapes and bytes: closed forms worked by hand, and laws that physics obeys."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import a100, changed

from simtrain.costs.gemm import GemmMachine, gemm_is_extrapolated, gemm_seconds
from simtrain.costs.links import collective_seconds, ring_seconds, transfer_seconds
from simtrain.costs.price import Pricer
from simtrain.hardware.links import CollectiveCurve
from simtrain.hardware.placement import GroupPlacement, Placement
from simtrain.hardware.profile import Tile
from simtrain.workload.ops import (
    Collective,
    CollectiveKind,
    Elementwise,
    Gemm,
    Kernel,
    Phase,
)

US = 1e-6
TOY = GemmMachine(
    num_sms=10,
    memory_bytes_per_s=1e15,
    mainloop_flops=1e12,
    tail_quantization=1.0,
    tile_overhead_s=1 * US,
    accumulate_overhead_s=2 * US,
    batched_fraction=0.5,
    sustained_flops=1e15,
    tiles=(Tile(m=16, n=16, relative_speed=1.0),),
)
# One tile of 16 × 16 × 1000 is 512e3 FLOPs at 1e11 FLOP/s of one multiprocessor.
LOOP_S = 5.12 * US


def product(m: int, n: int, k: int, **more: object) -> Gemm:
    return Gemm("product", m, n, k, Phase.FORWARD, **more)  # type: ignore[arg-type]


def test_one_tile_on_each_multiprocessor_is_one_wave() -> None:
    assert gemm_seconds(product(160, 16, 1000), TOY) == pytest.approx(LOOP_S + 1 * US)


def test_a_partly_filled_tile_takes_the_time_of_a_full_one() -> None:
    assert gemm_seconds(product(145, 9, 1000), TOY) == gemm_seconds(product(160, 16, 1000), TOY)


def test_an_eleventh_tile_starts_a_second_wave() -> None:
    assert gemm_seconds(product(176, 16, 1000), TOY) == pytest.approx(2 * (LOOP_S + 1 * US))


def test_a_last_wave_that_is_split_half_takes_between_its_part_and_all_of_it() -> None:
    """1.1 waves filled: half of 2, half of 1.1."""
    seconds = gemm_seconds(product(176, 16, 1000), TOY.replace(tail_quantization=0.5))
    assert seconds == pytest.approx(1.55 * (LOOP_S + 1 * US))


def test_less_than_one_wave_takes_a_whole_one() -> None:
    assert gemm_seconds(product(16, 16, 1000), TOY.replace(tail_quantization=0.0)) == (
        pytest.approx(LOOP_S + 1 * US)
    )


def test_adding_into_fp32_makes_the_epilogue_longer() -> None:
    gradient = product(160, 16, 1000, accumulate=True, output_element_bytes=4)
    assert gemm_seconds(gradient, TOY) == pytest.approx(LOOP_S + 3 * US)
    same_type = product(160, 16, 1000, accumulate=True)
    assert gemm_seconds(same_type, TOY) == pytest.approx(LOOP_S + 1 * US)


def test_batched_products_share_waves_at_their_fraction_of_speed() -> None:
    batched = product(16, 16, 1000, batch=10)
    assert gemm_seconds(batched, TOY) == pytest.approx((LOOP_S + 1 * US) / 0.5)


def test_the_fastest_tile_is_taken() -> None:
    """Ten tiles of 16 × 32 at full speed: one wave of twice the loop; of 16 × 16, two waves."""
    machine = TOY.replace(tiles=(*TOY.tiles, Tile(m=16, n=32, relative_speed=1.0)))
    assert gemm_seconds(product(160, 32, 1000), machine) == pytest.approx(2 * LOOP_S + 1 * US)


def test_power_and_memory_bound_a_product() -> None:
    op = product(160, 16, 1000)
    assert gemm_seconds(op, TOY.replace(sustained_flops=1e9)) == op.flops / 1e9
    moved = 2 * (160 * 1000 + 1000 * 16 + 160 * 16)
    assert gemm_seconds(op, TOY.replace(memory_bytes_per_s=1e9)) == moved / 1e9
    gradient = replace(op, accumulate=True, output_element_bytes=4)
    moved = 2 * (160 * 1000 + 1000 * 16) + 2 * 4 * 160 * 16
    assert gemm_seconds(gradient, TOY.replace(memory_bytes_per_s=1e9)) == moved / 1e9


SIZES = st.integers(1, 40_000)
PRODUCTS = st.builds(product, SIZES, SIZES, SIZES, batch=st.integers(1, 300))


@given(PRODUCTS, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 5000))
def test_a_larger_product_is_never_faster(op: Gemm, axis: str, more: int) -> None:
    machine = GemmMachine.of(a100())
    larger = replace(op, **{axis: getattr(op, axis) + more})
    assert gemm_seconds(larger, machine) >= gemm_seconds(op, machine)


@given(PRODUCTS)
def test_no_product_beats_what_power_sustains(op: Gemm) -> None:
    profile = a100()
    rate = op.flops / gemm_seconds(op, GemmMachine.of(profile))
    assert rate <= profile.gemm.sustained_flops.value * (1 + 1e-12)
    assert rate <= profile.gpu.peak_flops.value


@given(PRODUCTS)
def test_accumulating_is_never_faster(op: Gemm) -> None:
    machine = GemmMachine.of(a100())
    gradient = replace(op, accumulate=True, output_element_bytes=4)
    assert gemm_seconds(gradient, machine) >= gemm_seconds(op, machine)


def test_shapes_outside_the_fit_are_extrapolated() -> None:
    model = a100().gemm
    assert not gemm_is_extrapolated(product(8192, 6144, 6144), model)
    assert gemm_is_extrapolated(product(8192, 6144, 64), model)
    assert not gemm_is_extrapolated(product(2048, 2048, 64, batch=32), model)


@pytest.mark.parametrize("kernel", Kernel)
def test_a_memory_bound_kernel_takes_its_latency_and_its_bytes(kernel: Kernel) -> None:
    profile = changed(
        a100(),
        memory_bound__kernel_latency=3 * US,
        memory_bound__fused_bandwidth=1e12,
        memory_bound__stream_bandwidth=2e12,
    )
    op = Elementwise("kernel", 3_000_000, 1_000_000, Phase.FORWARD, kernel)
    bytes_s = {Kernel.FUSED: 4 * US, Kernel.STREAM: 2 * US}[kernel]
    pricer = Pricer(profile, Placement(1, 1, 1, 8))
    assert pricer.cost(op).duration_s == pytest.approx(3 * US + bytes_s)


def collective(kind: CollectiveKind, array_bytes: int, num_ranks: int = 8) -> Collective:
    return Collective("collective", kind, array_bytes, num_ranks, Phase.FORWARD)


def curve(sizes: list[str], efficiency: list[float]) -> CollectiveCurve:
    data = {"num_ranks": 8, "latency": "10 us", "array_bytes": sizes, "efficiency": efficiency}
    return CollectiveCurve.model_validate(data)


@pytest.mark.parametrize(
    ("kind", "sevenths"),
    [
        (CollectiveKind.ALL_REDUCE, 14),
        (CollectiveKind.ALL_GATHER, 7),
        (CollectiveKind.REDUCE_SCATTER, 7),
    ],
)
def test_a_ring_sends_seven_eighths_of_the_array_once_or_twice(
    kind: CollectiveKind, sevenths: int
) -> None:
    op = collective(kind, 8_000_000)
    assert op.wire_bytes == sevenths * 1_000_000
    seconds = ring_seconds(op, curve(["1 MB"], [0.5]), bandwidth_bytes_per_s=100e9)
    assert seconds == pytest.approx(10 * US + sevenths * 1e6 / 50e9)


@pytest.mark.parametrize(
    ("megabytes", "fraction"), [(0.01, 0.1), (1, 0.1), (10, 0.2), (100, 0.4), (1000, 0.4)]
)
def test_between_measured_sizes_a_ring_follows_a_power_law(
    megabytes: float, fraction: float
) -> None:
    """10 MB is the geometric mean of 1 MB and 100 MB, and 0.2 that of 0.1 and 0.4."""
    op = collective(CollectiveKind.ALL_GATHER, int(megabytes * 1e6))
    seconds = ring_seconds(op, curve(["1 MB", "100 MB"], [0.1, 0.4]), 100e9)
    assert seconds == pytest.approx(10 * US + op.wire_bytes / (fraction * 100e9))


def test_a_ring_over_nodes_pays_its_steps_and_the_adapters_of_its_ranks() -> None:
    """Two whole nodes: 2 · 15 steps, 30/16 of the array over eight adapters of 25 GB/s."""
    profile = changed(
        a100(),
        inter_node__step_latency=20 * US,
        inter_node__whole_node_efficiency=0.9,
        inter_node__concurrent_efficiency=0.5,
    )
    op = collective(CollectiveKind.ALL_REDUCE, 10**9, 16)
    whole = collective_seconds(op, GroupPlacement(16, 8), profile)
    assert whole == pytest.approx(30 * 20 * US + 30 / 16 * 1e9 / (8 * 25e9 * 0.9))
    scattered = collective_seconds(op, GroupPlacement(16, 1), profile)
    assert scattered == pytest.approx(30 * 20 * US + 30 / 16 * 1e9 / (25e9 * 0.5))


KINDS = st.sampled_from(CollectiveKind)
BYTES = st.integers(1, 2 * 10**9)
GROUPS = st.sampled_from(
    [GroupPlacement(n, per_node) for n in (2, 4, 8, 16, 24) for per_node in (1, 2, 4, 8)]
)


def seconds(kind: CollectiveKind, size: int, group: GroupPlacement, **changes: float) -> float:
    op = collective(kind, size, group.num_ranks)
    return collective_seconds(op, group, changed(a100(), **changes))


@given(KINDS, BYTES, BYTES, GROUPS)
def test_a_larger_array_never_takes_less_time(
    kind: CollectiveKind, size: int, more: int, group: GroupPlacement
) -> None:
    # Efficiencies are printed with five digits: between two of them a time may fall by rounding.
    assert seconds(kind, size + more, group) >= seconds(kind, size, group) * (1 - 1e-3)


@given(KINDS, BYTES, GROUPS, st.floats(1.0, 10.0))
def test_more_bandwidth_never_slows_a_collective(
    kind: CollectiveKind, size: int, group: GroupPlacement, times: float
) -> None:
    before = seconds(kind, size, group)
    assert seconds(kind, size, group, intra_node__bandwidth=300e9 * times) <= before
    assert seconds(kind, size, group, inter_node__adapter_bandwidth=25e9 * times) <= before


@given(KINDS, BYTES)
def test_a_group_of_one_has_nothing_to_do(kind: CollectiveKind, size: int) -> None:
    assert seconds(kind, size, GroupPlacement(1, 1)) == 0.0


@given(KINDS, BYTES, st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_crossing_nodes_is_never_faster(
    kind: CollectiveKind, size: int, num_ranks: int, per_node: int
) -> None:
    inside = seconds(kind, size, GroupPlacement(num_ranks, num_ranks))
    across = seconds(kind, size, GroupPlacement(num_ranks, min(per_node, num_ranks)))
    assert across >= inside


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_gather_and_scatter_together_are_slower_than_an_all_reduce(num_ranks: int) -> None:
    """As the paper observes (Section 6.2), though they send the same bytes."""
    group, size = GroupPlacement(num_ranks, num_ranks), 100_000_000
    both = seconds(CollectiveKind.ALL_GATHER, size, group) + seconds(
        CollectiveKind.REDUCE_SCATTER, size, group
    )
    assert both > seconds(CollectiveKind.ALL_REDUCE, size, group)


def transfer(num_bytes: float, *, same_node: bool, num_sharing: int = 1) -> float:
    profile = changed(
        a100(),
        intra_node__point_to_point__latency=8 * US,
        intra_node__point_to_point__efficiency=0.9,
        inter_node__point_to_point__latency=24 * US,
        inter_node__point_to_point__efficiency=0.8,
    )
    return transfer_seconds(
        num_bytes, same_node=same_node, num_sharing=num_sharing, profile=profile
    )


def test_a_transfer_takes_the_link_that_joins_its_ends() -> None:
    """NVLink at 0.9 of 300 GB/s inside a node; one of eight adapters at 0.8 of 25 GB/s across."""
    assert transfer(50e6, same_node=True) == pytest.approx(8 * US + 50e6 / 270e9)
    assert transfer(50e6, same_node=False) == pytest.approx(24 * US + 50e6 / 20e9)


def test_two_transfers_that_share_an_adapter_take_twice_the_bytes_time() -> None:
    alone, shared = (transfer(50e6, same_node=False, num_sharing=number) for number in (1, 2))
    latency_s = transfer(0, same_node=False)
    assert shared - latency_s == pytest.approx(2 * (alone - latency_s))


def test_eight_adapters_of_four_gpus_give_each_two() -> None:
    profile = changed(a100(), cluster__gpus_per_node=4)
    assert profile.adapter_share_bytes_per_s == 2 * 25e9


def test_the_pricer_prices_each_op_in_its_group() -> None:
    pricer = Pricer(a100(), Placement(tensor=8, data=2, pipeline=2, gpus_per_node=8))
    op = collective(CollectiveKind.ALL_REDUCE, 10**8)
    expected = collective_seconds(op, GroupPlacement(8, 8), a100())
    assert pricer.cost(op).duration_s == expected
    assert math.isfinite(expected)
    assert pricer.extrapolated() == ()
    pricer.cost(product(10, 10, 10))
    assert pricer.extrapolated() == ("product",)
