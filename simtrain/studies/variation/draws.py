"""Draws of one iteration: its sources of variation, its times, and their distribution.

All draws with a seed have the same random numbers, so scenarios with equal tasks differ by what was
changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.engine.compiled import Floats
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.variation.drawn import DrawnIteration, sources_of
from simtrain.iteration.variation.sources import Source
from simtrain.studies.variation.data_queue import intervals_s
from simtrain.studies.variation.distribution import Distribution
from simtrain.studies.variation.limits import check_plan

NumberedSource = tuple[int, Source]


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """An iteration with its sources of variation, and a seed."""

    iteration: IterationTimeline
    sources: tuple[NumberedSource, ...]
    seed: int
    drawn: DrawnIteration

    @classmethod
    def of(
        cls, iteration: IterationTimeline, sources: tuple[NumberedSource, ...], seed: int
    ) -> Draws:
        """Prepare the draws."""
        return cls(iteration, sources, seed, DrawnIteration.of(iteration, sources, seed))

    @classmethod
    def of_scenario(cls, iteration: IterationTimeline, seed: int = 0) -> Draws:
        """Prepare draws with the sources of the iteration's scenario and profile.

        Raises:
            InputError: a slow link is inside a node (E962).
        """
        check_plan(iteration.seconds.plan)
        _, entries = iteration.seconds.machine.profile.variation_entries
        return cls.of(iteration, sources_of(iteration, entries), seed)

    @property
    def usual_s(self) -> float:
        """Time of the iteration without variation."""
        return self.iteration.time_s

    def times_s(self, draws: range) -> Floats:
        """Return [draws], the times of the iterations."""
        return self.drawn.times_s(self.seed, draws)

    def distribution(self, times_s: Floats) -> Distribution:
        """Return the distribution of the time from one iteration to the next."""
        periods = []
        for _, source in self.sources:
            if period := source.period():
                periods.append(period)
            if loading := source.load_s():
                times_s = intervals_s(times_s, *loading)
        return Distribution.of(times_s, self.usual_s, periods)
