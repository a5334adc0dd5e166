"""Limits of ops and the profile entries behind their time, compared with hand calculations."""

import pytest

from simtrain.base.mesh import Group
from simtrain.durations.bottlenecks import Bottleneck, BottleneckFinder, Limit
from simtrain.durations.collectives import wire_bytes
from simtrain.durations.model import DurationModel
from simtrain.hardware.entries import entries_of, with_changed
from simtrain.workload.work import (
    Collective,
    CollectiveKind,
    Elementwise,
    FusedAttention,
    Gemm,
    GroupedGemm,
    HostResource,
    HostWork,
    Work,
)
from tests.helpers.toys import a100, ring_start_s

A100 = a100()
FIND = BottleneckFinder(DurationModel(A100))


def bottleneck(work: Work, find: BottleneckFinder = FIND) -> Bottleneck:
    found = find.of(lambda model: model.seconds(work))
    assert found
    return found


def group(ranks: int, per_node: int) -> Group:
    return Group(("tp",), ranks, per_node)


def test_a_copy_takes_bytes_over_bandwidth_plus_the_latency_of_a_kernel() -> None:
    work = Elementwise(10**7, 10**7)
    latency_s = A100.memory_bound.kernel_latency.value
    whole_s = latency_s + 2e7 / A100.memory_bound.fused_bandwidth.value
    found = bottleneck(work)
    assert (found.limit, found.entry) == (Limit.MEMORY, "memory_bound.fused_bandwidth")
    assert found.shares == pytest.approx(
        {
            "memory_bound.fused_bandwidth": 1 - latency_s / whole_s,
            "memory_bound.kernel_latency": latency_s / whole_s,
        },
        abs=1e-5,
    )
    assert bottleneck(Elementwise(8, 8)).limit is Limit.LAUNCH


def test_a_product_takes_its_main_loop_plus_the_overhead_of_its_tiles() -> None:
    found = bottleneck(Gemm(8192, 6144, 6144))
    assert (found.limit, found.entry) == (Limit.TENSOR_CORES, "gemm.mainloop_flops")
    loop, overhead = found.shares["gemm.mainloop_flops"], found.shares["gemm.tile_overhead"]
    assert loop + overhead == pytest.approx(1, abs=1e-5)
    # The model multiplies these three numbers.
    assert found.shares["gemm.tiles"] == pytest.approx(loop)
    assert found.shares["gemm.in_situ_speed"] == pytest.approx(loop)


@pytest.mark.parametrize(
    ("work", "limit", "entry"),
    [
        (Gemm(2**14, 2**14, 2**14), Limit.POWER, "gemm.sustained_flops"),
        (Gemm(8192, 8192, 32), Limit.MEMORY, "memory_bound.fused_bandwidth"),
        (Gemm(8192, 6144, 6144, dtype="fp32"), Limit.CUDA_CORES, "gemm.by_dtype.fp32"),
        (GroupedGemm(4, 8192, 4096, 4096, 8192, 8192), Limit.TENSOR_CORES, "gemm."),
        (FusedAttention(32, 8192, 128), Limit.TENSOR_CORES, "fused_attention.forward_efficiency"),
        (
            FusedAttention(32, 8192, 128, is_backward=True),
            *(Limit.TENSOR_CORES, "fused_attention.backward_efficiency"),
        ),
        (HostWork(10**9, HostResource.LINK), Limit.HOST, "host_link.bandwidth"),
        (HostWork(10**9, HostResource.ADAM), Limit.HOST, "host_link.adam_bandwidth"),
    ],
)
def test_limits_of_ops(work: Work, limit: Limit, entry: str) -> None:
    found = bottleneck(work)
    assert found.limit is limit
    assert found.entry.startswith(entry)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_collective_inside_a_node_is_limited_by_its_curve_or_by_latency(kind: str) -> None:
    large = bottleneck(Collective(CollectiveKind(kind), 2**28, group(8, 8)))
    assert (large.limit, large.entry) == (Limit.LINK, f"intra_node.{kind}")
    small = bottleneck(Collective(CollectiveKind(kind), 1024, group(8, 8)))
    assert (small.limit, small.entry) == (Limit.LATENCY, f"intra_node.{kind}")


def test_a_ring_across_nodes_takes_bytes_over_adapters_plus_its_steps() -> None:
    work = Collective(CollectiveKind.ALL_REDUCE, 2**28, group(8, 1))
    found = bottleneck(work)
    rate = A100.adapter_share_bytes_per_s * A100.network.concurrent_efficiency.value
    bytes_s = wire_bytes(work) / rate
    steps_s = 14 * A100.network.step_latency.value
    whole_s = bytes_s + steps_s + ring_start_s()
    assert found.limit is Limit.NETWORK
    assert found.shares["inter_node.adapter_bandwidth"] == pytest.approx(
        bytes_s / whole_s, abs=1e-5
    )
    assert found.shares["inter_node.step_latency"] == pytest.approx(steps_s / whole_s, abs=1e-5)


def test_an_entry_that_is_not_named_does_not_change_the_time() -> None:
    work = Collective(CollectiveKind.ALL_GATHER, 2**26, group(16, 8))
    for one in (Gemm(4096, 4096, 1024), work, FusedAttention(16, 4096, 128)):
        seconds, named = DurationModel(A100).seconds(one), bottleneck(one).shares
        for name, entry in entries_of(A100):
            if isinstance(entry.value, float) and not name.startswith(("memory.", "running_costs")):
                faster = DurationModel(with_changed(A100, name, lambda value: value * (1 + 1e-5)))
                assert (faster.seconds(one) != seconds) == (name in named), name
