"""The resources of a cluster, and profiles with more of one.

Every entry with a time, a bandwidth or a rate of FLOPs belongs to exactly one resource. With the
same factor more of all resources, every duration is divided by that factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simtrain.hardware.entries import with_changed
from simtrain.hardware.profile import HardwareProfile

_COLLECTIVES = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
_ALGORITHMS = "ring", "tree", "hierarchical"


@dataclass(frozen=True, slots=True)
class Resource:
    """Entries of a profile that are bought together.

    Args:
        label: what pages call it.
        rates: entries that "10 % more" multiplies by 1.1; names as for `with_changed`.
        times: entries that it divides by 1.1.
    """

    label: str
    rates: tuple[str, ...] = ()
    times: tuple[str, ...] = ()


RESOURCES = {
    "tensor_cores": Resource(
        "tensor cores",
        rates=(
            *("gpu.peak_flops", "gemm.mainloop_flops", "gemm.sustained_flops"),
            *("gemm.by_dtype.*.peak_flops", "gemm.by_dtype.*.mainloop_flops"),
            "gemm.by_dtype.*.sustained_flops",
        ),
    ),
    "memory_bandwidth": Resource(
        "memory bandwidth",
        rates=(
            *("gpu.memory_bandwidth", "gemm.operand_bandwidth", "memory_bound.fused_bandwidth"),
            *("memory_bound.stream_bandwidth", "memory_bound.kernels.*.*"),
        ),
    ),
    "memory_capacity": Resource("memory capacity", rates=("gpu.memory_capacity",)),
    "kernel_latencies": Resource(
        "kernel latencies",
        times=(
            *("memory_bound.kernel_latency", "gemm.tile_overhead", "gemm.accumulate_overhead"),
            "gemm.by_dtype.*.tile_overhead",
        ),
    ),
    "nvlink_bandwidth": Resource("NVLink bandwidth", rates=("intra_node.bandwidth",)),
    "nvlink_latencies": Resource(
        "NVLink latencies",
        times=(
            *("intra_node.point_to_point.latency", "collectives.switch.latency"),
            *(f"intra_node.{name}.*.latency" for name in _COLLECTIVES),
            *(f"collectives.{name}.*.node_step" for name in _ALGORITHMS),
        ),
    ),
    "network_bandwidth": Resource("network bandwidth", rates=("inter_node.adapter_bandwidth",)),
    "network_latencies": Resource(
        "network latencies",
        times=(
            *("inter_node.step_latency", "inter_node.point_to_point.latency"),
            *(f"collectives.{name}.*.base_latency" for name in _ALGORITHMS),
            *(f"collectives.{name}.*.network_step" for name in _ALGORITHMS),
        ),
    ),
    "host": Resource("host speed", rates=("host_link.adam_bandwidth",), times=("host.issue",)),
    "host_link": Resource("link to the host", rates=("host_link.bandwidth",)),
}
"""The resources by the names of JSON. `host.issue` can be a software stack's; see `sensitivity`."""


def with_more(
    profile: HardwareProfile, resources: Iterable[Resource], factor: float
) -> HardwareProfile:
    """Return a profile with `factor` times as much of some resources; sources do not change."""
    for resource in resources:
        for name in resource.rates:
            profile = with_changed(profile, name, lambda rate: type(rate)(rate * factor))
        for name in resource.times:
            profile = with_changed(profile, name, lambda time_s: time_s / factor)
    return profile
