"""What a source of variation says of itself, and what it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol

from numpy.random import Generator

from simtrain.hardware.variation import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.parts import PassPart
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.iteration.variation.draw import Draw, Speeds
from simtrain.iteration.variation.rank_layout import RankLayout
from simtrain.iteration.variation.response import Cause, Response
from simtrain.scenario.variation_section import Variation


class Source:
    """A source of variation. The methods of this class change nothing; a source overrides some.

    Attributes:
        name: its key in JSON and its field of the section `variation`.
        replicas_differ: whether replicas differ at random, so that all are simulated.
        is_rare: whether some draws may have nothing of it.
    """

    name: ClassVar[str]
    replicas_differ: ClassVar[bool] = True
    is_rare: ClassVar[bool] = False

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

    def period(self) -> tuple[int, float] | None:
        """Return every how many iterations all ranks wait between iterations, and for how long."""
        return None

    def load_s(self) -> tuple[float, int] | None:
        """Return the time to load an iteration's data, and how many iterations ahead it can be."""
        return None

    def pass_responses(self, seconds: IterationSeconds) -> Mapping[PassPart, Response]:
        """Return how the time of each different pass follows the attention of its microbatch."""
        return {}


class SourceOf(Protocol):
    """Makes the source of a scenario's section and a profile's entries; None if it is off."""

    def __call__(
        self, variation: Variation, entries: VariationEntries, plan: Plan
    ) -> Source | None:
        """Return the source."""
        ...
