"""What happens between iterations: loading data, evaluation and logging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simtrain.hardware.variation import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.variation.sources.source import Source
from simtrain.scenario.variation_section import Periodic, Variation
from simtrain.units import format_seconds, parse_seconds


@dataclass(frozen=True, slots=True)
class LoadedData(Source):
    """The loader of each replica prepares the sequences of the next iterations at a rate.

    Args:
        time_s: time to prepare the sequences of an iteration.
        prefetch: iterations that it prepares ahead.
    """

    name: ClassVar = "data_loader"
    replicas_differ: ClassVar = False
    time_s: float
    prefetch: int

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> LoadedData | None:
        """Return the source; None without a rate."""
        loader, scenario = variation.data_loader, plan.scenario
        if loader is None:
            return None
        sequences = scenario.batch.global_ / scenario.parallelism.data
        return cls(sequences / loader.sequences_per_s, loader.prefetch)

    @property
    def words(self) -> str:
        """What takes time."""
        return f"an iteration's data take {format_seconds(self.time_s)} to load"

    def load_s(self) -> tuple[float, int] | None:
        """Return the time to load an iteration's data, and how many iterations ahead it can be."""
        return self.time_s, self.prefetch


@dataclass(frozen=True, slots=True)
class PeriodicWork(Source):
    """Work for which all ranks wait once in a number of iterations."""

    replicas_differ: ClassVar = False
    noun: ClassVar[str]
    every: int
    time_s: float

    @classmethod
    def section(cls, variation: Variation) -> Periodic | None:
        """Return the part of the section that describes the work."""
        raise NotImplementedError

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> Source | None:
        """Return the source; None without such work."""
        work = cls.section(variation)
        return cls(work.every, parse_seconds(work.time)) if work else None

    @property
    def words(self) -> str:
        """What takes time."""
        return f"{self.noun} takes {format_seconds(self.time_s)} every {self.every:,} iterations"

    def period(self) -> tuple[int, float] | None:
        """Return the work."""
        return self.every, self.time_s


@dataclass(frozen=True, slots=True)
class Evaluation(PeriodicWork):
    """Evaluation."""

    name: ClassVar = "evaluation"
    noun: ClassVar = "evaluation"

    @classmethod
    def section(cls, variation: Variation) -> Periodic | None:
        """Return how often it is, and its time."""
        return variation.evaluation


@dataclass(frozen=True, slots=True)
class Logging(PeriodicWork):
    """Logging."""

    name: ClassVar = "logging"
    noun: ClassVar = "logging"

    @classmethod
    def section(cls, variation: Variation) -> Periodic | None:
        """Return how often it is, and its time."""
        return variation.logging
