"""Errors against published collectives over nodes, for docs/validation.md."""

import math
from collections.abc import Iterator

from docs.update.published.networks import (
    A100_TWO_NODES,
    ALL_TO_ALL_US,
    MIB,
    PUBLISHED,
    RING_SHARES,
    PublishedTimes,
)
from docs.update.request import Request, percent, table
from simtrain.base.mesh import Group
from simtrain.durations.collectives import collective_seconds, wire_bytes
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import Collective, CollectiveKind

HEAD = ["network", "collective", "array", "points", "rings alone, before", "rings and trees"]
A100_HEAD = ["network", "GPUs per node", "array", "published", "rings, before", "now"]
BANDS = (
    ("64 KiB to 8 MiB", MIB // 16, 8 * MIB),
    ("16 to 128 MiB", 16 * MIB, 128 * MIB),
    ("256 MiB and more", 256 * MIB, 2**60),
)
NOMINAL_BYTES_PER_S = 400e9
LARGEST = ((8192 * MIB, 8), (16384 * MIB, 16), (2048 * MIB, 32))
"""Array and number of nodes of published all-reduces of large arrays."""
LARGE_ALL_GATHER = (2048 * MIB, 32)
"""The same of a published all-gather."""


def rings_alone(profile: HardwareProfile) -> HardwareProfile:
    """Return the profile without its algorithms for collectives across nodes."""
    return profile.model_copy(update={"collectives": None})


def errors(
    figures: PublishedTimes, profile: HardwareProfile, least: int = 0, most: int = 2**60
) -> list[float]:
    """Return the relative errors of the published times for arrays from `least` to `most` bytes."""
    group = Group(("dp",), 8 * figures.num_nodes, 8)
    return [
        collective_seconds(Collective(figures.kind, size, group), profile) / (time * 1e-6) - 1
        for size, time in figures.times_us.items()
        if least <= size <= most
    ]


def networks(request: Request) -> str:
    """Return the table of networks: mean |error| and worst, with rings alone and with trees."""
    rows = []
    for figures in PUBLISHED:
        profile = load_profile(figures.cluster)
        for band, least, most in BANDS:
            before = errors(figures, rings_alone(profile), least, most)
            after = errors(figures, profile, least, most)
            if after:
                collective = f"{figures.kind.replace('_', '-')}, {figures.num_nodes} nodes"
                cells = [figures.network, collective, band, f"{len(after)}"]
                rows.append([*cells, _mean_and_worst(before), _mean_and_worst(after)])
    return table(HEAD, rows)


def _mean_and_worst(found: list[float]) -> str:
    mean = sum(map(abs, found)) / len(found)
    worst = f"{100 * max(found, key=abs):+.0f} %".replace("-", "−")
    return f"{100 * mean:.0f} %, {worst}"


def bus_bandwidth(kind: CollectiveKind, array_bytes: int, num_nodes: int) -> float:
    """Return the bytes per second over whole nodes of H100s, as nccl-tests counts them."""
    num_ranks = 8 * num_nodes
    op = Collective(kind, array_bytes, Group(("dp",), num_ranks, 8))
    return wire_bytes(op) / collective_seconds(op, load_profile("h100_sxm"))


def _shares() -> Iterator[tuple[int, int, float, float]]:
    """Yield array, number of nodes, and the published and our share of the nominal bandwidth."""
    for size, shares in RING_SHARES.items():
        for nodes, share in shares.items():
            ours = bus_bandwidth(CollectiveKind.ALL_GATHER, size, nodes) / NOMINAL_BYTES_PER_S
            yield size, nodes, share, ours


def ring_shares(request: Request) -> str:
    """Return the table of rings by number of nodes; `ring_shares factor` is their mean distance."""
    if request.text == "factor":
        logs = [abs(math.log(ours / share)) for _, _, share, ours in _shares()]
        return f"{math.exp(sum(logs) / len(logs)):.2f}"
    rows: dict[int, list[str]] = {}
    for size, _, share, ours in _shares():
        rows.setdefault(size, [f"{size // MIB:,} MiB"]).append(f"{share:.2f} / {ours:.2f}")
    first, *others = next(iter(RING_SHARES.values()))
    return table(["array", f"{first} nodes", *map(str, others)], [*rows.values()])


def all_reduces(request: Request) -> str:
    """Return our bus bandwidths, in GB/s, of the published all-reduces of large arrays."""
    ours = [bus_bandwidth(CollectiveKind.ALL_REDUCE, *one) / 1e9 for one in LARGEST]
    return "{:.0f}, {:.0f} and {:.0f}".format(*ours)


def all_gather(request: Request) -> str:
    """Return our bus bandwidth, in GB/s, of the published all-gather of a large array."""
    return f"{bus_bandwidth(CollectiveKind.ALL_GATHER, *LARGE_ALL_GATHER) / 1e9:.0f}"


def all_to_all_error(request: Request) -> str:
    """Return the mean |error| of the published all-to-alls inside a node."""
    profile, group = load_profile("h100_sxm"), Group(("ep",), 8, 8)
    errors = [
        collective_seconds(Collective(CollectiveKind.ALL_TO_ALL, size, group), profile) * 1e6 / time
        - 1
        for size, time in ALL_TO_ALL_US.items()
    ]
    return percent(sum(map(abs, errors)) / len(errors), 0)


def a100_profile(num_adapters: int, adapter_bytes_per_s: float) -> HardwareProfile:
    """Return the A100's profile with other network adapters."""
    profile = load_profile("a100_sxm4_80gb")
    network = profile.network
    changes = {
        "num_adapters": network.num_adapters.model_copy(update={"value": num_adapters}),
        "adapter_bandwidth": network.adapter_bandwidth.model_copy(
            update={"value": adapter_bytes_per_s}
        ),
    }
    return profile.model_copy(update={"inter_node": network.model_copy(update=changes)})


def all_reduce_seconds(
    profile: HardwareProfile, array_bytes: int, ranks_per_node: int, num_nodes: int = 2
) -> float:
    """Return the time of an all-reduce over nodes, run alone."""
    group = Group(("dp",), num_nodes * ranks_per_node, ranks_per_node)
    return collective_seconds(Collective(CollectiveKind.ALL_REDUCE, array_bytes, group), profile)


def a100_networks(request: Request) -> str:
    """Return the table of all-reduces over two A100 nodes.

    `a100_networks large` is the bus bandwidth, in GB/s, of 4 GiB over two nodes with four adapters.
    """
    if request.text == "large":
        array_bytes = 4096 * MIB
        taken_s = all_reduce_seconds(a100_profile(4, 25e9), array_bytes, 8)
        return f"{2 * 15 / 16 * array_bytes / taken_s / 1e9:.0f} GB/s"
    rows = []
    for network, adapters, bytes_per_s, ranks, size, published_us in A100_TWO_NODES:
        profile = a100_profile(adapters, bytes_per_s)
        before, after = (
            f"{all_reduce_seconds(one, size, ranks) * 1e6:,.0f} µs"
            for one in (rings_alone(profile), profile)
        )
        array = f"{size // MIB:,} MiB" if size >= MIB else f"{size // 1024} KiB"
        rows.append([network, f"{ranks}", array, f"{published_us:,.0f} µs", before, after])
    return table(A100_HEAD, rows)
