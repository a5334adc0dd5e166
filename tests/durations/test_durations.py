"""Durations of ops: hand calculations and physical laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.mesh import Group
from simtrain.durations.collectives import (
    collective_seconds,
    device_load,
    ring_seconds,
    transfer_seconds,
    wire_bytes,
)
from simtrain.durations.model import DurationModel, GemmMachine, gemm_seconds
from simtrain.hardware.cluster import CollectiveCurve
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import Tile
from simtrain.workload.work import (
    RING_COLLECTIVES,
    Collective,
    CollectiveKind,
    Elementwise,
    FusedAttention,
    Gemm,
    HostResource,
    HostWork,
    KernelFamily,
)
from tests.helpers.toys import a100, changed

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
# A tile of 16 × 16 × 1000 has 512e3 FLOPs, and each of 10 multiprocessors does 1e11 FLOP/s.
LOOP_S = 5.12 * US


@pytest.mark.parametrize("columns", [16, 15, 1])
def test_one_tile_on_each_multiprocessor_full_or_not_is_one_wave(columns: int) -> None:
    assert gemm_seconds(Gemm(160, columns, 1000), TOY) == pytest.approx(LOOP_S + 1 * US)


def test_an_eleventh_tile_starts_a_second_wave() -> None:
    assert gemm_seconds(Gemm(176, 16, 1000), TOY) == pytest.approx(2 * (LOOP_S + 1 * US))


def test_tail_quantization_interpolates_between_a_part_and_a_whole_wave() -> None:
    """Eleven tiles fill 1.1 of 2 waves. A quantization of 0.5 gives their mean, 1.55 waves."""
    seconds = gemm_seconds(Gemm(176, 16, 1000), TOY.replace(tail_quantization=0.5))
    assert seconds == pytest.approx(1.55 * (LOOP_S + 1 * US))


def test_adding_into_fp32_makes_the_epilogue_longer() -> None:
    gradient = Gemm(160, 16, 1000, accumulate=True, output_element_bytes=4)
    assert gemm_seconds(gradient, TOY) == pytest.approx(LOOP_S + 3 * US)
    same_type = Gemm(160, 16, 1000, accumulate=True)
    assert gemm_seconds(same_type, TOY) == pytest.approx(LOOP_S + 1 * US)


def test_batched_products_fill_waves_together_at_a_fraction_of_the_speed() -> None:
    batched = Gemm(16, 16, 1000, batch=10)
    assert gemm_seconds(batched, TOY) == pytest.approx((LOOP_S + 1 * US) / 0.5)


def test_the_fastest_tile_is_taken() -> None:
    """Tiles of 16 × 32 take one wave with a loop of twice the time. Tiles of 16 × 16 take two
    waves, and so twice the overhead.
    """
    machine = TOY.replace(tiles=(*TOY.tiles, Tile(m=16, n=32, relative_speed=1.0)))
    assert gemm_seconds(Gemm(160, 32, 1000), machine) == pytest.approx(2 * LOOP_S + 1 * US)


def test_power_and_memory_limit_a_product() -> None:
    op = Gemm(160, 16, 1000)
    assert gemm_seconds(op, TOY.replace(sustained_flops=1e9)) == op.flops / 1e9
    moved = 2 * (160 * 1000 + 1000 * 16 + 160 * 16)
    assert gemm_seconds(op, TOY.replace(memory_bytes_per_s=1e9)) == moved / 1e9
    gradient = replace(op, accumulate=True, output_element_bytes=4)
    moved = 2 * (160 * 1000 + 1000 * 16) + 2 * 4 * 160 * 16
    assert gemm_seconds(gradient, TOY.replace(memory_bytes_per_s=1e9)) == moved / 1e9


SIZES = st.integers(1, 40_000)
PRODUCTS = st.builds(Gemm, SIZES, SIZES, SIZES, batch=st.integers(1, 300))


@given(PRODUCTS, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 5000))
def test_a_larger_product_is_never_faster(op: Gemm, axis: str, more: int) -> None:
    machine = GemmMachine.of(a100())
    larger = replace(op, **{axis: getattr(op, axis) + more})
    assert gemm_seconds(larger, machine) >= gemm_seconds(op, machine)


@pytest.mark.parametrize("family", KernelFamily)
def test_a_memory_bound_kernel_takes_its_latency_and_the_time_of_its_bytes(
    family: KernelFamily,
) -> None:
    profile = changed(
        a100(),
        memory_bound__kernel_latency=3 * US,
        memory_bound__fused_bandwidth=1e12,
        memory_bound__stream_bandwidth=2e12,
    )
    work = Elementwise(3_000_000, 1_000_000, family)
    bytes_s = 2 * US if family.streams else 4 * US
    assert DurationModel(profile).seconds(work) == pytest.approx(3 * US + bytes_s)


def group(num_ranks: int, ranks_per_node: int) -> Group:
    return Group(("tp",), num_ranks, ranks_per_node)


def collective(
    kind: CollectiveKind, array_bytes: int, num_ranks: int = 8, ranks_per_node: int = 8
) -> Collective:
    return Collective(kind, array_bytes, group(num_ranks, ranks_per_node))


def curve(sizes: list[str], efficiency: list[float]) -> CollectiveCurve:
    data = {"num_ranks": 8, "latency": "10 us", "array_bytes": sizes, "efficiency": efficiency}
    return CollectiveCurve.model_validate(data)


ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, SEND, COPY = CollectiveKind
EIGHTHS = {ALL_REDUCE: 14, SEND: 8, COPY: 8} | dict.fromkeys(
    (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE), 7
)


@pytest.mark.parametrize("kind", CollectiveKind)
def test_a_ring_sends_seven_eighths_of_the_array_once_or_twice(kind: CollectiveKind) -> None:
    op = collective(kind, 8_000_000)
    assert wire_bytes(op) == EIGHTHS[kind] * 1_000_000
    seconds = ring_seconds(op, curve(["1 MB"], [0.5]), bandwidth_bytes_per_s=100e9)
    assert seconds == pytest.approx(10 * US + EIGHTHS[kind] * 1e6 / 50e9)


@pytest.mark.parametrize("kind", CollectiveKind)
def test_a_collective_slows_kernels_by_the_share_of_time_that_nvlink_would_take(
    kind: CollectiveKind,
) -> None:
    """Copy engines take nothing. What waits for the network moves its bytes in more time."""
    profile = changed(a100(), overlap__slowdown=0.2, inter_node__adapter_bandwidth=1e9)
    inside, across = (collective(kind, 10**8, 8, ranks) for ranks in (8, 1))
    seconds_of = lambda op: collective_seconds(op, profile)  # noqa: E731
    full, share = 0.0 if kind is COPY else 0.2, seconds_of(inside) / seconds_of(across)
    assert device_load(inside, seconds_of, profile) == full
    assert device_load(across, seconds_of, profile) == pytest.approx(full * share)
    assert device_load(across, lambda op: seconds_of(inside) / 2, profile) == full


@pytest.mark.parametrize(
    ("megabytes", "fraction"), [(0.01, 0.1), (1, 0.1), (10, 0.2), (100, 0.4), (1000, 0.4)]
)
def test_times_between_measured_sizes_follow_a_power_law(megabytes: float, fraction: float) -> None:
    """10 MB is the geometric mean of 1 MB and 100 MB, and 0.2 is the geometric mean
    of 0.1 and 0.4.
    """
    op = collective(CollectiveKind.ALL_GATHER, int(megabytes * 1e6))
    seconds = ring_seconds(op, curve(["1 MB", "100 MB"], [0.1, 0.4]), 100e9)
    assert seconds == pytest.approx(10 * US + wire_bytes(op) / (fraction * 100e9))


def test_a_ring_over_nodes_takes_its_steps_plus_bytes_over_the_adapters_of_its_ranks() -> None:
    """On two whole nodes, 2 of 30 steps are between nodes, and 30/16 of the array crosses eight
    adapters of 25 GB/s.
    """
    profile = changed(
        a100(),
        inter_node__step_latency=20 * US,
        inter_node__whole_node_efficiency=0.9,
        inter_node__concurrent_efficiency=0.5,
    )
    whole = collective_seconds(collective(CollectiveKind.ALL_REDUCE, 10**9, 16, 8), profile)
    latency_s = (8.4 + 28 * 3.4 + 2 * 20) * US  # a start, and steps inside and between nodes
    assert whole == pytest.approx(latency_s + 30 / 16 * 1e9 / (8 * 25e9 * 0.9))
    scattered = collective_seconds(collective(CollectiveKind.ALL_REDUCE, 10**9, 16, 1), profile)
    assert scattered == pytest.approx((8.4 + 30 * 20) * US + 30 / 16 * 1e9 / (25e9 * 0.5))


KINDS = st.sampled_from([*CollectiveKind])
BYTES = st.integers(1, 2 * 10**9)
GROUPS = st.sampled_from(
    [group(n, one) for n in (2, 4, 8, 16, 24) for one in (1, 2, 4, 8) if one <= n]
)


def seconds(kind: CollectiveKind, size: int, ranks: Group, **changes: float) -> float:
    return collective_seconds(Collective(kind, size, ranks), changed(a100(), **changes))


@given(KINDS, BYTES, BYTES, GROUPS)
def test_a_larger_array_never_takes_less_time(
    kind: CollectiveKind, size: int, more: int, ranks: Group
) -> None:
    # Profiles state efficiencies with five digits, so a time between two sizes may fall by
    # rounding.
    assert seconds(kind, size + more, ranks) >= seconds(kind, size, ranks) * (1 - 1e-3) > 0


def transfer(num_bytes: float, *, levels_crossed: int, num_sharing: int = 1) -> float:
    profile = changed(
        a100(),
        intra_node__point_to_point__latency=8 * US,
        intra_node__point_to_point__efficiency=0.9,
        inter_node__point_to_point__latency=24 * US,
        inter_node__point_to_point__efficiency=0.8,
    )
    return transfer_seconds(num_bytes, levels_crossed, num_sharing=num_sharing, profile=profile)


def test_a_transfer_uses_the_link_between_its_ends() -> None:
    """Inside a node, NVLink at 0.9 of 300 GB/s. Between nodes, one adapter at 0.8 of 25 GB/s."""
    assert transfer(50e6, levels_crossed=0) == pytest.approx(8 * US + 50e6 / 270e9)
    assert transfer(50e6, levels_crossed=1) == pytest.approx(24 * US + 50e6 / 20e9)


def test_an_all_to_all_across_nodes_needs_each_ranks_own_adapter() -> None:
    """8/16 of a rank's array leave its node if eight of the 16 ranks are there, 15/16 if it is
    alone.
    """
    network, share = a100().network, a100().adapter_share_bytes_per_s
    whole, part = network.whole_node_efficiency.value, network.concurrent_efficiency.value
    for ranks, rate in ((group(16, 8), 8 / 16 / whole), (group(16, 1), 15 / 16 / part)):
        expected = network.point_to_point.latency.value + rate * 10**8 / share
        assert seconds(CollectiveKind.ALL_TO_ALL, 10**8, ranks) == pytest.approx(expected)


def test_a_send_is_a_transfer_to_the_next_rank_of_its_group() -> None:
    for ranks, crossed in ((group(4, 4), 0), (group(4, 1), 1), (group(16, 8), 1)):
        alone = transfer_seconds(10**8, levels_crossed=crossed, num_sharing=1, profile=a100())
        assert seconds(CollectiveKind.SEND, 10**8, ranks) == alone


@pytest.mark.parametrize(
    ("users", "threads", "link", "adam"),
    # A DGX-2's 16 GPUs reach 48 GB/s together, one alone 12; they share 190.4 GB/s of Adam, of
    # which a thread reaches 13.3.
    [
        (None, 0, 3, 11.9),
        (512, 1, 3, 11.9),
        (8, 0, 6, 23.8),
        (8, 1, 6, 13.3),
        (1, 0, 12, 190.4),
        (1, 2, 12, 26.6),
    ],
)
def test_gpus_share_what_their_host_has(
    users: int | None, threads: int, link: float, adam: float
) -> None:
    model = DurationModel(load_profile("v100_dgx2"))
    works = [HostWork(10**9, resource, users, threads) for resource in HostResource]
    assert [*map(model.seconds, works)] == pytest.approx([1 / link, 1 / adam])


def test_work_beyond_all_measurements_is_extrapolated() -> None:
    is_extrapolated = DurationModel(a100()).is_extrapolated
    assert is_extrapolated(Gemm(10, 10, 10))
    assert not is_extrapolated(Gemm(8192, 6144, 6144))
    assert not is_extrapolated(Elementwise(1, 1))
    for window, is_cut in ((None, False), (4096, False), (1024, True)):
        attention = FusedAttention(64, 4096, 128, window=window)
        assert DurationModel(load_profile("h100_sxm")).is_extrapolated(attention) == is_cut
    for kind in RING_COLLECTIVES:
        assert not is_extrapolated(collective(kind, 10**8))
        assert not is_extrapolated(collective(kind, 10**8, 1, 1))
        assert is_extrapolated(collective(kind, 10**12))  # larger than any measured
        assert is_extrapolated(collective(kind, 10**8, 6))  # measured with 2, 4 and 8 ranks
        assert is_extrapolated(collective(kind, 10**8, 16, 8))  # on two nodes
    assert is_extrapolated(collective(ALL_TO_ALL, 10**8))  # its ring's curve stands in
    assert seconds(ALL_TO_ALL, 10**8, group(8, 8)) == seconds(REDUCE_SCATTER, 10**8, group(8, 8))
    assert not is_extrapolated(collective(CollectiveKind.SEND, 10**8))
