"""GPUs that differ: a spread between all of them, and one GPU, node or link that is slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from numpy.random import Generator

from simtrain.hardware.variation import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.variation.draw import Speeds
from simtrain.iteration.variation.rank_layout import RankLayout
from simtrain.iteration.variation.response import Cause
from simtrain.iteration.variation.sources.jitter import normal_factors, normal_range
from simtrain.iteration.variation.sources.source import Source
from simtrain.scenario.variation_section import Variation


@dataclass(frozen=True, slots=True)
class GpuSpread(Source):
    """The kernels of each GPU take a normal factor of their mean time, in all iterations."""

    name: ClassVar = "gpu_spread"
    sigma: float

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> GpuSpread | None:
        """Return the source; None without a deviation."""
        sigma = variation.gpu_spread
        sigma = entries.gpu_spread.value if sigma is None else sigma
        return cls(sigma) if sigma else None

    @property
    def words(self) -> str:
        """What varies."""
        return f"GPUs differ by {self.sigma:.1%}"

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        """Return the range of factors of kernels."""
        return {"kernels": normal_range(self.sigma)}

    def persist(self, speeds: Speeds, rng: Generator) -> None:
        """Draw a factor for each GPU."""
        speeds.kernels[...] *= normal_factors(self.sigma, speeds.kernels.shape, rng)


class SlowPart(Source):
    """Something of a node that is slow in every iteration."""

    name: ClassVar = "slow"
    replicas_differ: ClassVar = False
    rank: int
    factor: float

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> Source | None:
        """Return the source; None if nothing is slow."""
        slow = variation.slow
        if slow is None or slow.factor == 1:
            return None
        return _SLOW[slow.what](slow.rank, slow.factor)

    def ranks(self, layout: RankLayout) -> range:
        """Return the ranks that are slow: by default, those of the node."""
        return layout.ranks_on_node(self.rank)

    def differing_replicas(self, layout: RankLayout) -> Iterable[int]:
        """Return the replicas of the slow ranks."""
        return {layout.place(rank).replica for rank in self.ranks(layout)}

    @property
    def _times(self) -> str:
        return f"{self.factor:g} times as long in every iteration"


@dataclass(frozen=True, slots=True)
class SlowGpu(SlowPart):
    """The kernels of one GPU take longer."""

    rank: int
    factor: float

    @property
    def words(self) -> str:
        """What is slow."""
        return f"the kernels of rank {self.rank} take {self._times}"

    def ranks(self, layout: RankLayout) -> range:
        """Return the rank."""
        return range(self.rank, self.rank + 1)

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        """Return the factor of kernels."""
        return {"kernels": (1.0, self.factor)}

    def persist(self, speeds: Speeds, rng: Generator) -> None:
        """Slow down the kernels of the ranks."""
        for rank in self.ranks(speeds.layout):
            place = speeds.layout.place(rank)
            replica = speeds.replica_index(place.replica)
            speeds.kernels[place.member, place.stage, replica] *= self.factor


@dataclass(frozen=True, slots=True)
class SlowNode(SlowGpu):
    """The kernels of all GPUs of a node take longer."""

    @property
    def words(self) -> str:
        """What is slow."""
        return f"the kernels of the node of rank {self.rank} take {self._times}"

    def ranks(self, layout: RankLayout) -> range:
        """Return the ranks of the node."""
        return layout.ranks_on_node(self.rank)


@dataclass(frozen=True, slots=True)
class SlowLink(SlowPart):
    """Transfers and collectives through the network adapters of a node take longer."""

    rank: int
    factor: float

    @property
    def words(self) -> str:
        """What is slow."""
        return f"transfers through the adapters of rank {self.rank}'s node take {self._times}"

    def factors(self) -> Mapping[Cause, tuple[float, ...]]:
        """Return the factor of the network."""
        return {"network": (1.0, self.factor)}

    def persist(self, speeds: Speeds, rng: Generator) -> None:
        """Slow down the network of the stages and replicas on the node."""
        places = {speeds.layout.place(rank) for rank in self.ranks(speeds.layout)}
        for stage, replica in {(place.stage, place.replica) for place in places}:
            speeds.network[stage, speeds.replica_index(replica)] *= self.factor


_SLOW: dict[str, type[SlowGpu | SlowLink]] = {"gpu": SlowGpu, "node": SlowNode, "link": SlowLink}
