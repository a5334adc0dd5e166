"""What varies between ranks, replicas and iterations: a source per field of section `variation`.

A source multiplies factors of kernels, collectives or the network, or adds time to tasks. It knows
no engine. A new one is a class here and a line of `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simtrain.base.values import dataclass
from simtrain.engine.compiled import Floats
from simtrain.hardware.sections import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.variation.draw import LEAST_FACTOR, Draw, RankLayout, Speeds
from simtrain.iteration.variation.response import Cause
from simtrain.scenario.variation_section import Variation
from simtrain.units import HOUR_S, format_seconds, parse_non_negative_seconds

_DEVIATIONS = 8.0
"""Standard deviations within which practically all normal numbers are."""


class Source:
    """A source of variation. The methods of this class change nothing; a source overrides some."""

    name: ClassVar[str]
    """Its key in JSON and its field of the section `variation`."""
    replicas_differ: ClassVar[bool] = True
    """Whether replicas differ at random, so that all are simulated."""
    is_of_seed: ClassVar[bool] = False
    """Whether all draws with a seed have the same machines, which another seed draws anew."""

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> Source | None:
        """Make the source of a scenario's section and a profile's entries; None if it is off."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """What varies, for reports."""
        raise NotImplementedError

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        """Return the least and the largest factor of each cause, and others that are certain."""
        return {}

    def differing_replicas(self, layout: RankLayout) -> Iterable[int]:
        """Return replicas that differ from the others in every iteration."""
        return ()

    def persist(self, speeds: Speeds, rng: Generator) -> None:
        """Change what differs in every iteration."""

    def disturb(self, draw: Draw, rng: Generator) -> None:
        """Change one iteration."""


# ------------------------------------------------------------------------------ normal factors


def normal_factors(sigma: float, shape: tuple[int, ...], rng: Generator) -> NDArray[np.float32]:
    """Draw factors with mean 1 and this standard deviation, in single precision."""
    factors = rng.standard_normal(shape, np.float32)
    factors *= np.float32(sigma)
    factors += np.float32(1.0)
    return np.maximum(factors, np.float32(LEAST_FACTOR), out=factors)


@dataclass(frozen=True, slots=True)
class _Normal(Source):
    """Durations with a normal factor, whose deviation is the section's or the profile's."""

    cause: ClassVar[Cause] = "kernels"
    text: ClassVar[str]
    sigma: float

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> Self | None:
        sigma = getattr(variation, cls.name)
        sigma = getattr(entries, cls.name).value if sigma is None else sigma
        return cls(sigma) if sigma else None

    @property
    def words(self) -> str:
        return self.text.format(self.sigma)

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        spread = _DEVIATIONS * self.sigma
        return {self.cause: (max(LEAST_FACTOR, 1.0 - spread), 1.0 + spread)}


class KernelJitter(_Normal):
    """The kernels of a stage in each pass, on all ranks that wait for each other in its layers."""

    name, text = "kernels", "kernels vary by {:.1%} from pass to pass"

    def disturb(self, draw: Draw, rng: Generator) -> None:
        # The deviation was measured on passes of tensor-parallel groups, which wait for their
        # slowest rank in every layer: a factor for each rank would count that wait twice.
        speeds = draw.tasks.kernel_speeds
        draw.kernels = speeds * normal_factors(self.sigma, speeds.shape, rng)


class CollectiveJitter(_Normal):
    """Each transfer and collective; replicas that run a collective together take one factor."""

    name, text = "collectives", "transfers and collectives vary by {:.1%}"
    cause = "collectives"

    def disturb(self, draw: Draw, rng: Generator) -> None:
        leaders = draw.tasks.leaders
        factors = normal_factors(self.sigma, leaders.shape, rng)
        draw.collectives = np.take_along_axis(factors, leaders, axis=1).astype(np.float64)


class GpuSpread(_Normal):
    """The kernels of a stage's ranks, in all iterations; measured on groups as `KernelJitter`."""

    name, text = "gpu_spread", "stages and replicas differ by {:.1%}"
    is_of_seed = True

    def persist(self, speeds: Speeds, rng: Generator) -> None:
        speeds.kernels[...] *= normal_factors(self.sigma, speeds.kernels.shape, rng)


# --------------------------------------------------------------------------------- slow machines


@dataclass(frozen=True, slots=True)
class SlowPart(Source):
    """A GPU, a node or the adapters of a node that are slow in every iteration."""

    name: ClassVar = "slow"
    replicas_differ: ClassVar = False
    what: str
    rank: int
    factor: float

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> Self | None:
        slow = variation.slow
        return None if slow is None or slow.factor == 1 else cls(slow.what, slow.rank, slow.factor)

    @property
    def words(self) -> str:
        subject = {
            "gpu": f"the kernels of rank {self.rank}",
            "node": f"the kernels of the node of rank {self.rank}",
            "link": f"transfers through the adapters of rank {self.rank}'s node",
        }[self.what]
        return f"{subject} take {self.factor:g} times as long in every iteration"

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        return {"network" if self.what == "link" else "kernels": (1.0, self.factor)}

    def _ranks(self, layout: RankLayout) -> range:
        is_gpu = self.what == "gpu"
        return range(self.rank, self.rank + 1) if is_gpu else layout.ranks_on_node(self.rank)

    def differing_replicas(self, layout: RankLayout) -> Iterable[int]:
        return {layout.place(rank).replica for rank in self._ranks(layout)}

    def persist(self, speeds: Speeds, rng: Generator) -> None:
        factors = speeds.network if self.what == "link" else speeds.kernels
        places = [speeds.layout.place(rank) for rank in self._ranks(speeds.layout)]
        for stage, replica in {(place.stage, place.replica) for place in places}:
            factors[stage, speeds.replica_index(replica)] *= self.factor


# ---------------------------------------------------------------------------------------- pauses


def _passes_at(until_s: Floats, moments_s: Floats) -> NDArray[np.intp]:
    return np.minimum(np.searchsorted(until_s, moments_s, side="right"), len(until_s) - 1)


@dataclass(frozen=True, slots=True)
class RarePauses(Source):
    """Pauses come at a constant rate while a GPU computes, and have exponential durations.

    A pause lengthens the pass that it interrupts, for which the ranks of its group wait.
    """

    name: ClassVar = "pauses"
    per_gpu_s: float
    duration_s: float

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> Self | None:
        pauses = variation.pauses
        rate, duration = (pauses.per_gpu_hour, pauses.duration) if pauses else (None, None)
        rate = entries.pauses.per_gpu_hour.value if rate is None else rate
        duration_s = entries.pauses.duration.value
        if duration is not None:
            duration_s = parse_non_negative_seconds(duration)
        return cls(rate / HOUR_S, duration_s) if rate and duration_s else None

    @property
    def words(self) -> str:
        rate, mean = self.per_gpu_s * HOUR_S, format_seconds(self.duration_s)
        return f"GPUs pause {rate:.3g} times an hour, for {mean} in the mean"

    def disturb(self, draw: Draw, rng: Generator) -> None:
        tasks, until_s = draw.tasks, draw.tasks.computed_until_s
        total_s = float(until_s[-1])
        ranks = tasks.num_replicas * tasks.layout.members
        number = int(rng.poisson(self.per_gpu_s * total_s * ranks))
        if number:
            paused = tasks.computing[_passes_at(until_s, total_s * rng.random(number))]
            replicas = rng.integers(tasks.num_replicas, size=number)
            draw.add(paused, replicas, rng.exponential(self.duration_s, number))


SOURCES: tuple[type[Source], ...] = (
    KernelJitter,
    CollectiveJitter,
    GpuSpread,
    RarePauses,
    SlowPart,
)
"""In the order in which reports name them, which decides the random numbers: new ones go last."""
