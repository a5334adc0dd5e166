"""Errors against published collectives over nodes, for docs/validation.md."""

from docs.update.published.networks import MIB, PUBLISHED, PublishedTimes
from docs.update.request import Request, table
from simtrain.base.mesh import Group
from simtrain.durations.collectives import collective_seconds
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import Collective

HEAD = ["network", "collective", "array", "points", "rings alone, before", "rings and trees"]
BANDS = (
    ("64 KiB to 8 MiB", MIB // 16, 8 * MIB),
    ("16 to 128 MiB", 16 * MIB, 128 * MIB),
    ("256 MiB and more", 256 * MIB, 2**60),
)


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
