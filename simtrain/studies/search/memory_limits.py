"""How much memory the layouts of a search may use."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from simtrain.errors import InputError, Location
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.fit import FitVerdict, surely_fitting_bytes
from simtrain.units import UnitError, format_bytes, parse_bytes


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much memory the layouts of a search may use on each GPU.

    Args:
        memory_bytes: memory of a GPU that may be used.
        limit_bytes: the largest peak that fits: `memory_bytes` without the margin.
        safe_bytes: the largest peak of a layout that may be the best, unless none has so small a
            peak.
    """

    memory_bytes: int
    limit_bytes: int
    safe_bytes: int

    @classmethod
    def of(
        cls,
        max_memory: str | None,
        margin: str | None,
        allow_risk: float | None,
        profile: HardwareProfile,
        cluster: str,
    ) -> MemoryLimits:
        """Return the limits that the options of a search set on a cluster (E833, E834)."""
        memory_bytes = _highest_peak(max_memory, profile, cluster)
        limit_bytes = less_margin(memory_bytes, margin)
        return cls(memory_bytes, limit_bytes, safe_peak(memory_bytes, limit_bytes, allow_risk))


def less_margin(memory_bytes: int, margin: str | None) -> int:
    """Return the largest peak that leaves the margin free (E833)."""
    if margin is None:
        return memory_bytes
    place = Location("--margin")
    margin_bytes = _bytes_of(margin, place)
    if margin_bytes < memory_bytes:
        return memory_bytes - margin_bytes
    message = f"a margin of {margin} leaves nothing of {format_bytes(memory_bytes)}"
    raise InputError.of("E833", message, place, fix="write less, such as 4GiB")


def safe_peak(memory_bytes: int, limit_bytes: int, allow_risk: float | None) -> int:
    """Return the largest peak of a layout that may be the best (E834).

    Args:
        memory_bytes: memory of a GPU that may be used.
        limit_bytes: this without the margin.
        allow_risk: probability that a peak exceeds the memory; None for a peak that surely fits,
            unless there is a margin: it replaces the interval of the peak.
    """
    if allow_risk is None:
        has_margin = limit_bytes < memory_bytes
        return limit_bytes if has_margin else surely_fitting_bytes(memory_bytes)
    if type(allow_risk) not in (int, float) or not 0 <= allow_risk <= 1:
        message, place = f"allow_risk is {allow_risk!r}", Location("--allow-risk")
        raise InputError.of("E834", message, place, "write a probability from 0 to 1, such as 0.3")

    def risk(peak_bytes: int) -> float:
        """Probability that a peak exceeds the memory, which grows with the peak."""
        return 1 - FitVerdict(peak_bytes, memory_bytes).probability

    return bisect_right(range(1, limit_bytes + 1), allow_risk, key=risk)


def _highest_peak(written: str | None, profile: HardwareProfile, name: str) -> int:
    """Return --max-memory in bytes; by default, and at most, the GPU's capacity."""
    capacity_bytes, place = profile.gpu.memory_capacity.value, Location("--max-memory")
    if written is None:
        return capacity_bytes
    limit_bytes = _bytes_of(written, place)
    if limit_bytes <= capacity_bytes:
        return limit_bytes
    capacity = format_bytes(capacity_bytes)
    raise InputError.of(
        "E833",
        f"{written} is more than the {capacity} of a GPU of {name}",
        place,
        reason="a layout that needs more cannot run on this GPU",
        fix=f"write at most {capacity}, remove it, or name another cluster: --set cluster=NAME",
    )


def _bytes_of(written: str, place: Location) -> int:
    try:
        return parse_bytes(written)
    except UnitError as error:
        raise InputError.of("E833", str(error), place, fix=error.fix) from error
