"""Rare pauses of single GPUs: of the host, the network or the GPU itself."""

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
from simtrain.units import HOUR_S, format_seconds, parse_non_negative_seconds


@dataclass(frozen=True, slots=True)
class RarePauses(Source):
    """Pauses come at a constant rate while a GPU computes, and have exponential durations.

    A pause of one rank lengthens the pass that it interrupts, for which the ranks of its group
    wait. The more ranks there are, the more iterations contain a long one.
    """

    name: ClassVar = "pauses"
    is_rare: ClassVar = True
    per_gpu_s: float
    duration_s: float

    @classmethod
    def of(cls, variation: Variation, entries: VariationEntries, plan: Plan) -> RarePauses | None:
        """Return the source; None without pauses."""
        pauses = variation.pauses
        rate, duration = (pauses.per_gpu_hour, pauses.duration) if pauses else (None, None)
        rate = entries.pauses.per_gpu_hour.value if rate is None else rate
        duration_s = entries.pauses.duration.value
        if duration is not None:
            duration_s = parse_non_negative_seconds(duration)
        return cls(rate / HOUR_S, duration_s) if rate and duration_s else None

    @property
    def words(self) -> str:
        """What varies."""
        rate, mean = self.per_gpu_s * HOUR_S, format_seconds(self.duration_s)
        return f"GPUs pause {rate:.3g} times an hour, for {mean} in the mean"

    def disturb(self, draw: Draw, rng: Generator) -> None:
        """Draw the pauses of an iteration: a Poisson number of them, spread over all passes."""
        tasks, until_s = draw.tasks, draw.tasks.computed_until_s
        total_s = float(until_s[-1])
        ranks = tasks.num_replicas * tasks.layout.members
        number = int(rng.poisson(self.per_gpu_s * total_s * ranks))
        if number:
            places = np.searchsorted(until_s, total_s * rng.random(number), side="right")
            paused = tasks.computing[np.minimum(places, len(until_s) - 1)]
            replicas = rng.integers(tasks.num_replicas, size=number)
            draw.add(paused, replicas, rng.exponential(self.duration_s, number))
