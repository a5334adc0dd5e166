"""Whether a predicted peak fits in the memory of a GPU, and how probably.

The one place that decides it: `run`, `memory`, `compare`, reports, searches and JSON show its
verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.spread import Spread
from simtrain.units import gib

PEAK_SPREAD = Spread(0.075)
"""Spread of measured peaks around predicted ones.

Of 73 cases that Megatron-Core's tests record on H100s, without memory outside tensors, as `simtrain
validate` compares them: dense and with experts, latent attention, context parallelism, fp8. 5 % of
them are predicted at least 7.2 % too low and 5 % at least 6.2 % too high; the farther end counts
for both.
"""
_HARDLY = 0.05


class MemoryFit(Enum):
    """Whether a scenario fits.

    SURELY: the upper end of the 90 % interval of its peak is within the memory.
    PERHAPS: the predicted peak is within the memory, and the upper end is not.
    NOT: the predicted peak exceeds the memory.
    """

    SURELY = "fits"
    PERHAPS = "may not fit"
    NOT = "does not fit"


@dataclass(frozen=True, slots=True)
class PeakInterval(PlainData):
    """Where a measured peak lies: from p5 to p95 in 90 % of runs, from p25 to p75 in 50 %.

    Args:
        p5_bytes: 5 % of measured peaks are below.
        p25_bytes: 25 % are below.
        p75_bytes: 75 % are below.
        p95_bytes: 95 % are below.
    """

    json_fields: ClassVar = keys("p5=p5_bytes p25=p25_bytes p75=p75_bytes p95=p95_bytes")

    p5_bytes: int
    p25_bytes: int
    p75_bytes: int
    p95_bytes: int

    @classmethod
    def of(cls, peak_bytes: int) -> PeakInterval:
        """Return the interval of a predicted peak."""
        whole, half = PEAK_SPREAD.factor(), PEAK_SPREAD.factor(0.5)
        return cls(*(round(peak_bytes * factor) for factor in (1 / whole, 1 / half, half, whole)))

    def __repr__(self) -> str:
        return f"<PeakInterval {self.ends}>"

    @property
    def ends(self) -> str:
        """The ends of the 90 % interval in words."""
        return f"{gib(self.p5_bytes)} to {gib(self.p95_bytes)} GiB"


@dataclass(frozen=True, slots=True)
class FitVerdict(PlainData):
    """Whether a scenario fits in memory, from its predicted peak and the interval of that peak.

    Args:
        peak_bytes: predicted peak of the fullest stage.
        capacity_bytes: memory of a GPU, or the part of it that may be used.
        host_fits: the hosts have the memory and the NVMe for what is offloaded to them.
    """

    json_fields: ClassVar = keys("state probability")

    peak_bytes: int
    capacity_bytes: int
    host_fits: bool = True

    @property
    def probability(self) -> float:
        """The probability that the measured peak is within the memory; 0 if the host's is not."""
        return PEAK_SPREAD.share_below(self.capacity_bytes / self.peak_bytes) * self.host_fits

    @property
    def interval(self) -> PeakInterval:
        """Where the measured peak lies."""
        return PeakInterval.of(self.peak_bytes)

    @property
    def state(self) -> MemoryFit:
        """Whether it surely fits, may not fit or does not fit."""
        if self.peak_bytes > self.capacity_bytes or not self.host_fits:
            return MemoryFit.NOT
        return (
            MemoryFit.SURELY
            if self.interval.p95_bytes <= self.capacity_bytes
            else MemoryFit.PERHAPS
        )

    @property
    def fits(self) -> bool:
        """Whether the predicted peak is within the memory, surely or not."""
        return self.state is not MemoryFit.NOT

    @property
    def fits_surely(self) -> bool:
        """Whether the upper end of the 90 % interval of the peak is within the memory."""
        return self.state is MemoryFit.SURELY

    @property
    def label(self) -> str:
        """The state as the first word of a closing line: OK, MAY NOT FIT or DOES NOT FIT."""
        return "OK" if self.fits_surely else self.state.value.upper()

    @property
    def doubt(self) -> str:
        """How probably it fits, as a clause with the interval; empty if there is little doubt."""
        if self.fits_surely or self.probability < _HARDLY:
            return ""
        return (
            f"the peak is {self.interval.ends} nine times in ten; "
            f"it fits with {self.probability:.0%}"
        )

    def __repr__(self) -> str:
        return f"<FitVerdict {self}>"

    def __str__(self) -> str:
        host = "" if self.host_fits else ", and the host has not enough memory"
        return f"{self.label}: {gib(self.peak_bytes)} of {gib(self.capacity_bytes)} GiB{host}"


def surely_fitting_bytes(capacity_bytes: int) -> int:
    """Return the largest predicted peak that surely fits in a capacity."""
    return int(capacity_bytes / PEAK_SPREAD.factor())
