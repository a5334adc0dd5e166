"""Entries of a hardware profile that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms import available
from simtrain.hardware.cluster import ROUNDING, most_fraction
from simtrain.hardware.entries import entries_of, entry_of
from simtrain.units import format_bytes, format_decimal

if TYPE_CHECKING:
    from simtrain.hardware.profile import HardwareProfile

SET_IN_SCENARIO = "set in the scenario"
"""The source of an entry that a scenario overrides."""
_PINNED = (
    "write the bandwidth of copies between pinned host memory and the GPU, one way; PCIe 5.0 x16 "
    "has 64 GB/s"
)


class _Side(NamedTuple):
    """One entry of a contradiction: its dotted name, what is wrong with it, and its fix."""

    entry: str
    message: str
    fix: str


def check_contradictions(profile: HardwareProfile) -> None:
    """Check that no two entries contradict each other.

    Raises:
        FieldError: at the entry that the scenario sets; if it sets none or all of them, at the
            entry that is more likely wrong.
    """
    _check_bound(profile)
    _check_links(profile)
    _check_products(profile)
    _check_reserve(profile)
    _check_collectives(profile)
    _check_power(profile)
    _check_bandwidths(profile)


def _refuse(profile: HardwareProfile, *sides: _Side) -> NoReturn:
    overridden = (side for side in sides if entry_of(profile, side.entry).source == SET_IN_SCENARIO)
    side = next(overridden, sides[0])
    raise FieldError((*side.entry.split("."), "value"), side.message, side.fix)


def _check_bound(profile: HardwareProfile) -> None:
    """Check that a profile of best possible values is not calibrated too."""
    if profile.lower_bound and profile.calibrated:
        message = "true contradicts calibrated: true, as fitted entries give times, not bounds"
        raise FieldError(("lower_bound",), message, "write lower_bound: false, or leave it out")


def _check_links(profile: HardwareProfile) -> None:
    """Check that GPUs of a node, and nodes, have links if there are several."""
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


def _check_most(
    profile: HardwareProfile, limit: str, values: Mapping[str, float], unit: str, fix: str
) -> None:
    """Check that no entry is above a limit, which is an entry too."""
    most = entry_of(profile, limit).value
    above = {name: value for name, value in values.items() if value > most}
    if not above:
        return
    highest, (name, value) = format_decimal(most, unit), next(iter(above.items()))
    largest = max(above, key=above.__getitem__)
    reached = format_decimal(above[largest], unit)
    _refuse(
        profile,
        _Side(name, f"{format_decimal(value, unit)} is above {limit} {highest}", fix),
        _Side(
            limit,
            f"{highest} is below {reached}, which {largest} reaches",
            f"write at least {reached}, or lower what is above it too",
        ),
    )


def _check_products(profile: HardwareProfile) -> None:
    """Check that no product is faster than the peak of its data type."""
    in_situ_speed = profile.gemm.in_situ_speed.value
    rates = {"gemm": (profile.gemm, "gpu.peak_flops")} | {
        f"gemm.by_dtype.{dtype}": (gemm, f"gemm.by_dtype.{dtype}.peak_flops")
        for dtype, gemm in profile.gemm.by_dtype
        if gemm
    }
    for section, (gemm, peak_name) in rates.items():
        peak, mainloop = entry_of(profile, peak_name).value, gemm.mainloop_flops.value
        highest, name = format_decimal(peak, "FLOP/s"), f"{section}.mainloop_flops"
        if (reached := mainloop * in_situ_speed) > peak:
            product = format_decimal(reached, "FLOP/s")
            above = f"it is {product}, above {peak_name} {highest}"
            most = format_decimal(peak / in_situ_speed, "FLOP/s")
            _refuse(
                profile,
                _Side(
                    name,
                    f"multiplied by gemm.in_situ_speed {above}",
                    f"no product is faster than the peak: write at most {most}, lower "
                    "gemm.in_situ_speed, or correct the peak of this data type",
                ),
                _Side(
                    peak_name,
                    f"{highest} is below {product}, which {name} reaches",
                    f"write at least {product}, or lower {name} too",
                ),
                _Side(
                    "gemm.in_situ_speed",
                    f"multiplied by {name} {above}",
                    f"write at most {peak / mainloop:.4g}",
                ),
            )
        sustained = {f"{section}.sustained_flops": gemm.sustained_flops.value}
        fix = f"write at most {highest}, or correct the peak of this data type"
        _check_most(profile, peak_name, sustained, "FLOP/s", fix)


def _check_reserve(profile: HardwareProfile) -> None:
    """Check that the GPU has more memory than the allocator's reserve."""
    reserve_bytes = profile.memory.allocator_reserve.value
    capacity_bytes = profile.gpu.memory_capacity.value
    if reserve_bytes < capacity_bytes:
        return
    reserve, capacity = format_bytes(reserve_bytes), format_bytes(capacity_bytes)
    less, more = "memory.allocator_reserve", "gpu.memory_capacity"
    _refuse(
        profile,
        _Side(less, f"{reserve} is not less than {more} {capacity}", f"write less than {capacity}"),
        _Side(
            more,
            f"{capacity} is not more than {less} {reserve}",
            f"write more than {reserve}, such as 80 GiB",
        ),
    )


def _check_collectives(profile: HardwareProfile) -> None:
    """Check that no collective is faster than its link, and each algorithm's entry."""
    if (links := profile.intra_node) is None:
        return
    measured, nvlink = links.all_reduce.value[-1].num_ranks, profile.cluster.nvlink_gpus
    for algorithm, entry in available(profile.collectives):
        algorithm.check(entry, measured, nvlink)
    in_situ_speed = links.in_situ_speed.value
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        if (curves := getattr(links, kind)) is None:
            continue
        # A curve above 1 shows that the switch performs the collective.
        best, most = max(
            (fraction, most_fraction(kind, curve.num_ranks) if fraction > 1 else 1.0)
            for curve in curves.value
            for fraction in [max(curve.efficiency)]
        )
        if best * in_situ_speed > most * (1 + ROUNDING):
            _refuse(
                profile,
                _Side(
                    "intra_node.in_situ_speed",
                    f"multiplied by the efficiency {best:.4g} of {kind} it exceeds the link",
                    f"write at most {most / best:.4g}",
                ),
                _Side(
                    f"intra_node.{kind}",
                    f"the efficiency {best:.4g} multiplied by intra_node.in_situ_speed "
                    f"{in_situ_speed:.4g} exceeds the link",
                    f"write efficiencies of at most {most / in_situ_speed:.4g}",
                ),
            )


def _check_power(profile: HardwareProfile) -> None:
    """Check that a node draws at least the power of its GPUs."""
    costs, num_gpus = profile.running_costs, profile.cluster.gpus_per_node.value
    if costs is None or costs.gpu_power is None or costs.node_power is None:
        return
    gpu_w, node_w = costs.gpu_power.value, costs.node_power.value
    if node_w >= num_gpus * gpu_w:
        return
    gpus, node = format_decimal(num_gpus * gpu_w, "W"), format_decimal(node_w, "W")
    name, most = "running_costs.node_power", format_decimal(node_w / num_gpus, "W")
    more = f"{num_gpus} GPUs draw {gpus}, more than {name} {node}"
    whole = f"write the power of the whole node, at least {gpus}"
    _refuse(
        profile,
        _Side(name, f"{node} is less than the {gpus} of its GPUs", whole),
        _Side("running_costs.gpu_power", more, f"write at most {most}, or raise {name} too"),
        _Side("cluster.gpus_per_node", more, f"set {name} too, to at least {gpus}"),
    )


def _check_bandwidths(profile: HardwareProfile) -> None:
    """Check that nothing moves bytes faster than the GPU's memory."""
    highest = format_decimal(profile.gpu.memory_bandwidth.value, "B/s")
    cached = f"write at most {highest}; a faster measurement came from a cache"
    links = {"host_link.bandwidth", "host_link.single_bandwidth"}
    kernels = {"gemm.operand_bandwidth"} | {
        name
        for name, _ in entries_of(profile.memory_bound, "memory_bound.")
        if name.endswith(("_bandwidth", ".forward", ".backward"))
    }
    for names, fix in ((kernels, cached), (links, _PINNED)):
        values = {name: entry.value for name, entry in entries_of(profile) if name in names}
        _check_most(profile, "gpu.memory_bandwidth", values, "B/s", fix)
