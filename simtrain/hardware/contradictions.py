"""Entries of a hardware profile that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.cluster import ROUNDING, most_fraction
from simtrain.hardware.entries import entries_of, entry_of
from simtrain.units import format_bytes, format_decimal

if TYPE_CHECKING:
    from simtrain.hardware.profile import HardwareProfile

SET_IN_SCENARIO = "set in the scenario"
"""The source of an entry that a scenario overrides."""
_PEAK = "no product is faster than the peak of its data type"
_CACHED = "a faster measurement came from a cache"
_PINNED = (
    "write the bandwidth of copies between pinned host memory and the GPU, one way; PCIe 5.0 x16 "
    "has 64 GB/s"
)


class _Limit(NamedTuple):
    """Entries whose product is at most another entry; the first is more likely wrong."""

    names: tuple[str, ...]
    limit: str
    unit: str
    reason: str


def check_contradictions(profile: HardwareProfile) -> None:
    """Check that no two entries contradict each other.

    Raises:
        FieldError: at the entry that the scenario sets; if it sets none or all of them, at the
            entry that is more likely wrong.
    """
    if profile.lower_bound and profile.calibrated:
        message = "true contradicts calibrated: true, as fitted entries give times, not bounds"
        raise FieldError(("lower_bound",), message, "write lower_bound: false, or leave it out")
    _check_links(profile)
    for limit in _limits(profile):
        _check_limit(profile, limit)
    _check_collectives(profile)


def _limits(profile: HardwareProfile) -> Iterator[_Limit]:
    peaks = {"gemm": "gpu.peak_flops"} | {
        f"gemm.by_dtype.{dtype}": f"gemm.by_dtype.{dtype}.peak_flops"
        for dtype, gemm in profile.gemm.by_dtype
        if gemm
    }
    for section, peak in peaks.items():
        products = f"{section}.mainloop_flops", "gemm.in_situ_speed"
        yield _Limit(products, peak, "FLOP/s", _PEAK)
        yield _Limit((f"{section}.sustained_flops",), peak, "FLOP/s", _PEAK)
    less = ("memory.allocator_reserve",)
    yield _Limit(less, "gpu.memory_capacity", "B", "the rest of the memory is for tensors")
    costs = profile.running_costs
    if costs and costs.gpu_power and costs.node_power:
        of_gpus = "running_costs.gpu_power", "cluster.gpus_per_node"
        reason = "the power of a node is that of the whole node, with its GPUs"
        yield _Limit(of_gpus, "running_costs.node_power", "W", reason)
    links = {"host_link.bandwidth", "host_link.single_bandwidth"}
    kernels = {"gemm.operand_bandwidth"} | {
        name
        for name, _ in entries_of(profile.memory_bound, "memory_bound.")
        if name.endswith(("_bandwidth", ".forward", ".backward"))
    }
    rates = {name: entry.value for name, entry in entries_of(profile) if name in links | kernels}
    # The fastest first, so that the remedy for a low limit suits all of them.
    for name in sorted(rates, key=rates.__getitem__, reverse=True):
        reason = _PINNED if name in links else _CACHED
        yield _Limit((name,), "gpu.memory_bandwidth", "B/s", reason)


def _check_limit(profile: HardwareProfile, limit: _Limit) -> None:
    values = {name: entry_of(profile, name).value for name in limit.names}
    reached, most = math.prod(values.values()), entry_of(profile, limit.limit).value
    has_room = reached < most or (reached == most and limit.unit != "B")
    if has_room:
        return

    def text(value: float) -> str:
        return format_bytes(value) if limit.unit == "B" else format_decimal(value, limit.unit)

    wrong = _to_blame(profile, (*limit.names, limit.limit))
    if wrong == limit.limit:
        message = f"{text(most)} is below {text(reached)}, which {limit.names[0]} reaches"
        fix = f"write at least {text(reached)}, or lower {' or '.join(limit.names)} too"
    else:
        others = " and ".join(name for name in limit.names if name != wrong)
        what = f"multiplied by {others} it is {text(reached)}," if others else f"{text(reached)} is"
        message = f"{what} above {limit.limit} {text(most)}"
        allowed = values[wrong] * most / reached
        is_main = wrong == limit.names[0]
        at_most = text(allowed) if is_main else f"{math.floor(1e4 * allowed) / 1e4:g}"
        fix = f"write at most {at_most}; {limit.reason}"
    raise FieldError((*wrong.split("."), "value"), message, fix)


def _to_blame(profile: HardwareProfile, names: tuple[str, ...]) -> str:
    overridden = (name for name in names if entry_of(profile, name).source == SET_IN_SCENARIO)
    return next(overridden, names[0])


def _check_links(profile: HardwareProfile) -> None:
    cluster = profile.cluster
    joined = "gpus_per_nvlink_domain" if cluster.gpus_per_nvlink_domain else "gpus_per_node"
    beyond = cluster.num_nodes.value if cluster.num_gpus > cluster.nvlink_gpus else 1
    needed = (
        ("intra_node", profile.intra_node, joined, cluster.nvlink_gpus),
        ("inter_node", profile.inter_node, "num_nodes", beyond),
    )
    for section, links, field, count in needed:
        if links is None and count > 1:
            message = f"{count} need links, but the profile has no section {section}"
            fix = f"add the section {section} to the profile, or write 1"
            raise FieldError(("cluster", field, "value"), message, fix)


def _check_collectives(profile: HardwareProfile) -> None:
    """Check that no collective is faster than its link, and the entry of the switch."""
    if (links := profile.intra_node) is None:
        return
    measured, nvlink = links.all_reduce.value[-1].num_ranks, profile.cluster.nvlink_gpus
    switch = profile.collectives and profile.collectives.switch
    if switch and switch.efficiency and nvlink <= measured:
        raise FieldError(
            ("collectives", "switch", "efficiency", "value"),
            f"no node has more GPUs ({nvlink}) than the largest measured all_reduce ({measured} "
            "ranks), whose curve already includes NCCL's choice",
            "remove efficiency, or add cluster.gpus_per_nvlink_domain",
        )
    speed = links.in_situ_speed.value
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        if (curves := getattr(links, kind)) is None:
            continue
        # A curve above 1 shows that the switch performs the collective.
        best, most = max(
            (fraction, most_fraction(kind, curve.num_ranks) if fraction > 1 else 1.0)
            for curve in curves.value
            for fraction in [max(curve.efficiency)]
        )
        if best * speed <= most * (1 + ROUNDING):
            continue
        wrong = _to_blame(profile, ("intra_node.in_situ_speed", f"intra_node.{kind}"))
        if wrong == f"intra_node.{kind}":
            what = f"the efficiency {best:.4g} multiplied by intra_node.in_situ_speed {speed:.4g}"
            fix = f"write efficiencies of at most {most / speed:.4g}"
        else:
            what = f"multiplied by the efficiency {best:.4g} of {kind} it"
            fix = f"write at most {most / best:.4g}"
        raise FieldError((*wrong.split("."), "value"), f"{what} exceeds the link", fix)
