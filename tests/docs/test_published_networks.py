"""What docs/validation.md says of collectives over H100 and H200 nodes, recomputed."""

import math
from collections.abc import Iterator

from simtrain.durations.collectives import collective_seconds, wire_bytes
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.mesh import Group
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers.command_line import ROOT
from tests.helpers.published_networks import MIB, PUBLISHED, RING_SHARES, PublishedTimes

BANDS = (
    ("64 KiB to 8 MiB", MIB // 16, 8 * MIB),
    ("16 to 128 MiB", 16 * MIB, 128 * MIB),
    ("256 MiB and more", 256 * MIB, 2**60),
)
VALIDATION = (ROOT / "docs/validation.md").read_text(encoding="utf-8")


def errors(figures: PublishedTimes, profile: HardwareProfile, least: int, most: int) -> list[float]:
    group = Group(("dp",), 8 * figures.num_nodes, 8)
    return [
        collective_seconds(Collective(figures.kind, size, group), profile) / (time * 1e-6) - 1
        for size, time in figures.times_us.items()
        if least <= size <= most
    ]


def worst_and_mean(found: list[float]) -> str:
    mean = sum(map(abs, found)) / len(found)
    worst = f"{100 * max(found, key=abs):+.0f} %".replace("-", "−")
    return f"{100 * mean:.0f} %, {worst}"


def table() -> Iterator[str]:
    """A line for each network and band: mean |error| and worst, with rings alone and now."""
    for figures in PUBLISHED:
        now = load_profile(figures.cluster)
        rings = now.model_copy(update={"collectives": None})
        for band, least, most in BANDS:
            before, after = (errors(figures, one, least, most) for one in (rings, now))
            if after:
                yield (
                    f"| {figures.network} | {figures.kind.replace('_', '-')}, "
                    f"{figures.num_nodes} nodes | {band} | {len(after)} "
                    f"| {worst_and_mean(before)} | {worst_and_mean(after)} |"
                )


def test_the_table_of_published_networks_is_current() -> None:
    lines = [*table()]
    assert len(lines) == 8
    for line in lines:
        assert line in VALIDATION, line


def test_algorithms_are_nearer_to_what_was_published_than_rings_alone() -> None:
    """By the mean error over all figures."""
    rings, now = [], []
    for figures in PUBLISHED:
        profile = load_profile(figures.cluster)
        without = profile.model_copy(update={"collectives": None})
        rings += map(abs, errors(figures, without, 0, 2**60))
        now += map(abs, errors(figures, profile, 0, 2**60))
    assert sum(now) / len(now) < 0.1 < 0.8 < sum(rings) / len(rings)


def bus_bandwidth(kind: CollectiveKind, array_bytes: int, num_nodes: int) -> float:
    """Bytes a second over whole nodes of H100s, as nccl-tests counts them."""
    num_ranks = 8 * num_nodes
    op = Collective(kind, array_bytes, Group(("dp",), num_ranks, 8))
    return wire_bytes(op) / collective_seconds(op, load_profile("h100_sxm"))


def test_rings_lose_bandwidth_over_nodes_by_their_latency_alone() -> None:
    """Without an efficiency by number of nodes they fall as a published table does."""
    logs = []
    for size, shares in RING_SHARES.items():
        gather = CollectiveKind.ALL_GATHER
        ours = {nodes: bus_bandwidth(gather, size, nodes) / 400e9 for nodes in shares}
        cells = [f"{shares[nodes]:.2f} / {ours[nodes]:.2f}" for nodes in shares]
        assert f"| {size // MIB:,} MiB | {' | '.join(cells)} |" in VALIDATION
        logs += [abs(math.log(ours[nodes] / shares[nodes])) for nodes in shares]
    assert f"by a factor of {math.exp(sum(logs) / len(logs)):.2f}" in VALIDATION


def test_all_reduces_of_the_largest_arrays_that_the_validation_quotes() -> None:
    measured = ((8192 * MIB, 8), (16384 * MIB, 16), (2048 * MIB, 32))
    ours = [bus_bandwidth(CollectiveKind.ALL_REDUCE, *one) / 1e9 for one in measured]
    first, second, third = (f"{one:.0f}" for one in ours)
    assert f"we say {first}, {second} and {third}." in " ".join(VALIDATION.split())
