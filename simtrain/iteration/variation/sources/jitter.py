"""Durations that vary from pass to pass: of kernels, and of transfers and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simtrain.hardware.variation import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.variation.draw import LEAST_FACTOR, Draw
from simtrain.iteration.variation.response import Cause
from simtrain.iteration.variation.sources.source import Source
from simtrain.scenario.variation_section import Variation

_DEVIATIONS = 8.0
"""Standard deviations within which practically all normal numbers are."""


def normal_range(sigma: float) -> tuple[float, float]:
    """Return the factors between which practically all normal factors with this deviation are."""
    return max(LEAST_FACTOR, 1.0 - _DEVIATIONS * sigma), 1.0 + _DEVIATIONS * sigma


def normal_factors(sigma: float, shape: tuple[int, ...], rng: Generator) -> NDArray[np.float32]:
    """Draw factors with mean 1 and this standard deviation, in single precision."""
    factors = rng.standard_normal(shape, np.float32)
    factors *= np.float32(sigma)
    factors += np.float32(1.0)
    return np.maximum(factors, np.float32(LEAST_FACTOR), out=factors)


@dataclass(frozen=True, slots=True)
class KernelJitter(Source):
    """The kernels of each GPU in each pass take a normal factor of their mean time.

    A stage waits for the slowest of its ranks: the largest of as many normal numbers.
    """

    name: ClassVar = "kernels"
    sigma: float

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> KernelJitter | None:
        """Return the source; None without a deviation."""
        sigma = entries.kernels.value if variation.kernels is None else variation.kernels
        return cls(sigma) if sigma else None

    @property
    def words(self) -> str:
        """What varies."""
        return f"kernels vary by {self.sigma:.1%} from pass to pass"

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        """Return the range of factors of kernels."""
        return {"kernels": normal_range(self.sigma)}

    def disturb(self, draw: Draw, rng: Generator) -> None:
        """Draw a factor for each GPU and pass."""
        speeds = draw.tasks.kernel_speeds
        factors = normal_factors(self.sigma, speeds.shape, rng)
        factors *= speeds
        draw.kernels = factors.max(axis=0).astype(np.float64)


@dataclass(frozen=True, slots=True)
class CollectiveJitter(Source):
    """Each transfer and collective takes a normal factor of its mean time.

    Replicas that run a collective together take one factor.
    """

    name: ClassVar = "collectives"
    sigma: float

    @classmethod
    def of(
        cls, variation: Variation, entries: VariationEntries, plan: Plan
    ) -> CollectiveJitter | None:
        """Return the source; None without a deviation."""
        sigma = variation.collectives
        sigma = entries.collectives.value if sigma is None else sigma
        return cls(sigma) if sigma else None

    @property
    def words(self) -> str:
        """What varies."""
        return f"transfers and collectives vary by {self.sigma:.1%}"

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        """Return the range of factors of collectives."""
        return {"collectives": normal_range(self.sigma)}

    def disturb(self, draw: Draw, rng: Generator) -> None:
        """Draw a factor for each task and group of replicas."""
        leaders = draw.tasks.leaders
        factors = normal_factors(self.sigma, leaders.shape, rng)
        draw.collectives = np.take_along_axis(factors, leaders, axis=1).astype(np.float64)
