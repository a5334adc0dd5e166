"""What varies between ranks, replicas and iterations: a source per field of section `variation`.

A source multiplies factors of kernels, collectives or the network, or adds time to tasks. It knows
no engine. A new one is a class here and a line of `SOURCES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simtrain.engine.compiled import Floats
from simtrain.hardware.sections import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.parts import PassPart
from simtrain.iteration.programs.seconds import IterationSeconds, passes_of
from simtrain.iteration.variation.draw import LEAST_FACTOR, Draw, Speeds
from simtrain.iteration.variation.rank_layout import RankLayout
from simtrain.iteration.variation.response import Cause, Response
from simtrain.scenario.variation_section import Variation
from simtrain.units import HOUR_S, format_seconds, parse_non_negative_seconds

_DEVIATIONS = 8.0
"""Standard deviations within which practically all normal numbers are."""
_SHORTEST = 128
"""Tokens of the shortest documents whose passes are simulated."""


class Source:
    """A source of variation. The methods of this class change nothing; a source overrides some."""

    name: ClassVar[str]
    """Its key in JSON and its field of the section `variation`."""
    replicas_differ: ClassVar[bool] = True
    """Whether replicas differ at random, so that all are simulated."""
    is_rare: ClassVar[bool] = False
    """Whether some draws may have nothing of it."""
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

    def pass_responses(self, seconds: IterationSeconds) -> Mapping[PassPart, Response]:
        """Return how the time of each different pass follows the attention of its microbatch."""
        return {}


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
    """The kernels of each GPU in each pass: a stage waits for the slowest of its ranks."""

    name, text = "kernels", "kernels vary by {:.1%} from pass to pass"

    def disturb(self, draw: Draw, rng: Generator) -> None:
        speeds = draw.tasks.kernel_speeds
        factors = normal_factors(self.sigma, speeds.shape, rng)
        factors *= speeds
        draw.kernels = factors.max(axis=0).astype(np.float64)


class CollectiveJitter(_Normal):
    """Each transfer and collective; replicas that run a collective together take one factor."""

    name, text = "collectives", "transfers and collectives vary by {:.1%}"
    cause = "collectives"

    def disturb(self, draw: Draw, rng: Generator) -> None:
        leaders = draw.tasks.leaders
        factors = normal_factors(self.sigma, leaders.shape, rng)
        draw.collectives = np.take_along_axis(factors, leaders, axis=1).astype(np.float64)


class GpuSpread(_Normal):
    """The kernels of each GPU, in all iterations."""

    name, text = "gpu_spread", "GPUs differ by {:.1%}"
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
        places = [speeds.layout.place(rank) for rank in self._ranks(speeds.layout)]
        if self.what == "link":
            for stage, of_node in {(place.stage, place.replica) for place in places}:
                speeds.network[stage, speeds.replica_index(of_node)] *= self.factor
            return
        for place in places:
            replica = speeds.replica_index(place.replica)
            speeds.kernels[place.member, place.stage, replica] *= self.factor


# ---------------------------------------------------------------------------------------- pauses


def _passes_at(until_s: Floats, moments_s: Floats) -> NDArray[np.intp]:
    return np.minimum(np.searchsorted(until_s, moments_s, side="right"), len(until_s) - 1)


@dataclass(frozen=True, slots=True)
class RarePauses(Source):
    """Pauses come at a constant rate while a GPU computes, and have exponential durations.

    A pause lengthens the pass that it interrupts, for which the ranks of its group wait.
    """

    name: ClassVar = "pauses"
    is_rare: ClassVar = True
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


# ---------------------------------------------------------------------------- uneven documents


@dataclass(frozen=True, slots=True)
class UnevenDocuments(Source):
    """Sequences pack documents of log-normal length, within which attention stays.

    The work of attention in a sequence is proportional to the sum of the squares of its documents'
    lengths; all other work is the same. The engine simulates the passes with documents of s, s/2,
    s/4, ... tokens; between these sums of squares the time is interpolated.

    Args:
        mean: mean tokens of a document.
        sigma: standard deviation of the logarithm of its length.
        seq_length: tokens of a sequence.
    """

    name: ClassVar = "sequence_lengths"
    mean: float
    sigma: float
    seq_length: int

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> Self | None:
        lengths, seq_length = variation.sequence_lengths, plan.scenario.model.seq_length
        return cls(lengths.mean, lengths.sigma, seq_length) if lengths else None

    @property
    def words(self) -> str:
        return f"sequences pack documents of {self.mean:,.0f} tokens in the mean"

    def pass_responses(self, seconds: IterationSeconds) -> Mapping[PassPart, Response]:
        plan, machine = seconds.plan, seconds.machine
        domains = machine.profile.cluster.domains_of(plan.scenario.num_gpus)
        points: dict[PassPart, list[tuple[float, float]]] = {}
        for length in self._simulated_lengths():
            scenario = plan.scenario.replace({"batch.packed_lengths": [length]})
            packed = Plan.of(scenario, domains, plan.num_saved_per_stage)
            number, rest = divmod(self.seq_length, length)
            share = (number * length**2 + rest**2) / self.seq_length**2
            for part, pass_ in passes_of(packed):
                usual_s = seconds.passes[part].duration_s
                ratio = machine.time(pass_).duration_s / usual_s if usual_s else 1.0
                points.setdefault(part, []).append((share, ratio))
        return {
            part: Response(*zip(*sorted(of_part), strict=True)) for part, of_part in points.items()
        }

    def _simulated_lengths(self) -> Iterator[int]:
        length = self.seq_length
        while length > _SHORTEST:
            yield length
            length //= 2
        yield length

    def disturb(self, draw: Draw, rng: Generator) -> None:
        """Draw one stream of documents for each replica."""
        tasks = draw.tasks
        draw.attention = np.stack(
            [self._shares(tasks.num_microbatches, rng) for _ in range(tasks.num_replicas)]
        )

    def _shares(self, num_sequences: int, rng: Generator) -> Floats:
        """Return [sequences], the sums of squares relative to one document per sequence."""
        tokens = num_sequences * self.seq_length
        ends = [np.zeros(1)]
        while ends[-1][-1] < tokens:
            number = int((tokens - ends[-1][-1]) / self.mean * 1.1) + 16
            ends.append(ends[-1][-1] + np.cumsum(self._drawn(number, rng)))
        cuts = np.arange(1, num_sequences + 1) * self.seq_length
        borders = np.unique(np.concatenate([*ends, cuts]))
        borders = borders[borders <= tokens]
        of_sequence = ((borders[1:] - 1) // self.seq_length).astype(np.intp)
        squares = np.diff(borders) ** 2
        shares: Floats = np.bincount(of_sequence, squares, num_sequences) / self.seq_length**2
        return shares

    def _drawn(self, number: int, rng: Generator) -> Floats:
        location = math.log(self.mean) - self.sigma**2 / 2
        return np.rint(rng.lognormal(location, self.sigma, number)).clip(1)


SOURCES: tuple[type[Source], ...] = (
    KernelJitter,
    CollectiveJitter,
    GpuSpread,
    RarePauses,
    SlowPart,
    UnevenDocuments,
)
"""In the order in which reports name them, which decides the random numbers: new ones go last."""
