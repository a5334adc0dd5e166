"""The resources of a cluster, and profiles with more of one.

Every entry with a time, a bandwidth or a rate of FLOPs belongs to exactly one resource. With the
same factor more of all resources, every duration is divided by that factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from simtrain.base.strict_yaml import YamlDocument
from simtrain.base.strict_yaml.reading import section
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.hardware.algorithms import ALGORITHMS
from simtrain.hardware.contradictions import SET_IN_SCENARIO
from simtrain.hardware.entries import entries_of, with_changed, with_source
from simtrain.hardware.profile import HardwareProfile

_COLLECTIVES = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"


@dataclass(frozen=True, slots=True)
class Resource:
    """Entries of a profile that are bought together.

    Args:
        label: what pages call it.
        text: what its entries are, for the documents.
        rates: entries that "10 % more" multiplies by 1.1; names as for `with_changed`.
        times: entries that it divides by 1.1.
        is_capacity: whether it decides what fits, and no duration: more of it changes an iteration
            only if simtrain chooses the recompute.
        is_host: whether it also divides the host time per kernel of a scenario or of a software
            stack.
    """

    label: str
    text: str
    rates: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    is_capacity: bool = False
    is_host: bool = False


RESOURCES = {
    "tensor_cores": Resource(
        "tensor cores",
        "rates of matrix products and of fused attention, in every data type",
        rates=(
            *("gpu.peak_flops", "gemm.mainloop_flops", "gemm.sustained_flops"),
            *("gemm.by_dtype.*.peak_flops", "gemm.by_dtype.*.mainloop_flops"),
            "gemm.by_dtype.*.sustained_flops",
        ),
    ),
    "memory_bandwidth": Resource(
        "memory bandwidth",
        "bandwidths of memory-bound kernels, and of the operands of products",
        rates=(
            *("gpu.memory_bandwidth", "gemm.operand_bandwidth", "memory_bound.fused_bandwidth"),
            *("memory_bound.stream_bandwidth", "memory_bound.kernels.*.*"),
        ),
    ),
    "memory_capacity": Resource(
        "memory capacity", "what fits", rates=("gpu.memory_capacity",), is_capacity=True
    ),
    "kernel_latencies": Resource(
        "kernel latencies",
        "latency of a kernel, overhead of a tile of a product",
        times=(
            *("memory_bound.kernel_latency", "gemm.tile_overhead", "gemm.accumulate_overhead"),
            "gemm.by_dtype.*.tile_overhead",
        ),
    ),
    "nvlink_bandwidth": Resource(
        "NVLink bandwidth",
        "links inside a node",
        rates=("intra_node.bandwidth",),
    ),
    "nvlink_latencies": Resource(
        "NVLink latencies",
        "latencies of links and collectives inside a node",
        times=(
            "intra_node.point_to_point.latency",
            *(f"intra_node.{name}.*.latency" for name in _COLLECTIVES),
            *(
                f"collectives.{name}.{latency}"
                for name, algorithm in ALGORITHMS.items()
                for latency in algorithm.node_latencies
            ),
        ),
    ),
    "network_bandwidth": Resource(
        "network bandwidth",
        "adapters of a node",
        rates=("inter_node.adapter_bandwidth",),
    ),
    "network_latencies": Resource(
        "network latencies",
        "steps and transfers between nodes",
        times=(
            *("inter_node.step_latency", "inter_node.point_to_point.latency"),
            *(
                f"collectives.{name}.{latency}"
                for name, algorithm in ALGORITHMS.items()
                for latency in algorithm.network_latencies
            ),
        ),
    ),
    "host": Resource(
        "host speed",
        "time to launch a kernel (also that of a software stack), Adam on the host",
        rates=("host_link.adam_bandwidth",),
        times=("host.issue",),
        is_host=True,
    ),
    "host_link": Resource(
        "link to the host",
        "copies of offloaded states and activations",
        rates=("host_link.bandwidth", "host_link.single_bandwidth"),
    ),
}
"""The resources by the names of JSON."""


def with_more(
    profile: HardwareProfile, resources: Iterable[Resource], factor: float
) -> HardwareProfile:
    """Return a profile with `factor` times as much of some resources; sources do not change."""
    for resource in resources:
        for name in resource.rates:
            profile = with_changed(profile, name, lambda rate: type(rate)(rate * factor))
        for name in resource.times:
            profile = with_changed(profile, name, lambda time_s: time_s / factor)
        if resource.is_host:
            profile = profile.with_faster_host(factor)
    return profile


SCALE = "scale"
"""The section of `hardware` with a factor for each of some resources."""


def scaled(profile: HardwareProfile, overrides: YamlDocument) -> HardwareProfile:
    """Return a profile with the factors of the section `scale` of a scenario's overrides.

    Entries that change have the source of entries that the scenario sets.

    Raises:
        InputError: there is no such resource, a factor is not a number above 0, or the section is
            not a mapping (E208).
    """
    if SCALE not in overrides.data:
        return profile
    factors = section(overrides, (SCALE,))
    if not isinstance(factors.data, dict):
        fix = "write scale: {network_bandwidth: 2}"
        message = f"hardware.{SCALE} is {factors.data!r}"
        raise InputError.of("E208", message, overrides.positions.of_value((SCALE,)), fix)
    changed = profile
    for name, factor in factors.data.items():
        resources = _resources(name, factors.positions.of_key((name,)))
        number = _factor(str(factor), factors.positions.of_value((name,)))
        changed = with_more(changed, resources, number)
    before = dict(entries_of(profile))
    for name, entry in entries_of(changed):
        if entry.value != before[name].value:
            changed = with_source(changed, name, SET_IN_SCENARIO)
    return changed


def _resources(name: str, location: Location | None) -> list[Resource]:
    """Return the resource of a name, or those whose names begin with it as a word."""
    whole = [resource for key, resource in RESOURCES.items() if key == name]
    parts = [resource for key, resource in RESOURCES.items() if key.startswith(f"{name}_")]
    if whole or parts:
        return whole or parts
    words = {key.partition("_")[0] for key in RESOURCES}
    question = did_you_mean(name, [*RESOURCES, *words])
    fix = f"{question}resources are: {', '.join(RESOURCES)}; network means all of network_*"
    raise InputError.of("E208", f'there is no resource "{name}"', location, fix)


def _factor(text: str, location: Location | None) -> float:
    try:
        factor = float(text.strip().lower().removesuffix("x"))
    except ValueError:
        factor = math.nan
    if 0 < factor < math.inf:
        return factor
    fix = "write a factor above 0, such as 2x or 0.5"
    raise InputError.of("E208", f'"{text}" is not a factor', location, fix)
