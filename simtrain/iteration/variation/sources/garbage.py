"""Pauses of the processes for Python's garbage collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from simtrain.hardware.variation import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.variation.draw import Draw
from simtrain.iteration.variation.sources.source import Source
from simtrain.scenario.variation_section import Variation
from simtrain.units import format_seconds, parse_seconds


@dataclass(frozen=True, slots=True)
class GarbageCollections(Source):
    """Each process pauses once in a number of iterations, at a time of its own.

    In an iteration of many ranks some process pauses nearly always. If processes pause together,
    only one iteration in that number is longer (Megatron-LM's --manual-gc).
    """

    name: ClassVar = "garbage_collection"
    is_rare: ClassVar = True
    every: int
    pause_s: float
    synchronized: bool

    @classmethod
    def of(
        cls, variation: Variation, entries: VariationEntries, plan: Plan
    ) -> GarbageCollections | None:
        """Return the source; None without pauses."""
        collects = variation.garbage_collection
        if collects is None:
            return None
        return cls(collects.every, parse_seconds(collects.pause), collects.synchronized)

    @property
    def words(self) -> str:
        """What pauses."""
        together = "all processes together pause" if self.synchronized else "each process pauses"
        pause = format_seconds(self.pause_s)
        return f"{together} for {pause} to collect garbage, every {self.every:,} iterations"

    def period(self) -> tuple[int, float] | None:
        """Return the common pause."""
        return (self.every, self.pause_s) if self.synchronized else None

    def disturb(self, draw: Draw, rng: Generator) -> None:
        """Let each rank pause with a probability, in a pass of its stage."""
        if self.synchronized:
            return
        tasks, members = draw.tasks, draw.tasks.layout.members
        shape = tasks.layout.mesh.pp, tasks.num_replicas
        pauses = rng.binomial(members, 1 / self.every, shape)
        for stage in np.flatnonzero(pauses.any(axis=1)).tolist():
            of_stage = tasks.computing[tasks.stage_of[tasks.computing] == stage]
            until_s = np.cumsum(tasks.duration_s[of_stage])
            replicas = np.repeat(np.arange(shape[1]), pauses[stage])
            moments_s = until_s[-1] * rng.random(len(replicas))
            places = np.searchsorted(until_s, moments_s, side="right")
            paused = of_stage[np.minimum(places, len(of_stage) - 1)]
            draw.add(paused, replicas, np.full(len(replicas), self.pause_s))
