"""Draws of one iteration: its sources of variation, its times, and their distribution.

Studies that rank iterations compare the mean of a few draws if a scenario varies. All draws with a
seed have the same random numbers, so layouts with equal tasks differ by what was changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from simtrain.engine.compiled import Floats
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.variation.drawn import DrawnIteration, sources_of
from simtrain.iteration.variation.sources import Source
from simtrain.scenario import Scenario
from simtrain.studies.draw_request import DEFAULT_DRAWS
from simtrain.studies.variation.data_queue import intervals_s
from simtrain.studies.variation.distribution import Distribution
from simtrain.studies.variation.limits import check_plan
from simtrain.units import counted

_RANKING_DRAWS = range(4, 20)
"""Least and most draws of an iteration that a study ranks."""
_RANKING_NUMBERS = 16_000_000
"""Random numbers per ranked iteration. Large iterations have fewer draws, and vary less: their sums
have more terms.
"""
_DEVIATIONS = 5.0
"""Standard deviations of GPUs by which a bound allows for a lucky draw of all of them."""

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

    @property
    def draws_for_ranking(self) -> int:
        """How many draws a study takes that ranks the iteration."""
        least, most = _RANKING_DRAWS.start, _RANKING_DRAWS.stop
        tasks = self.drawn.tasks
        numbers = len(tasks.duration_s) * tasks.num_replicas * tasks.layout.members
        return min(most, max(least, _RANKING_NUMBERS // numbers))

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


def drawn_time(iteration: IterationTimeline, draws: int | None = DEFAULT_DRAWS) -> Distribution:
    """Return the distribution of an iteration's time over draws with seed 0, without reasons.

    Args:
        iteration: whose draws are computed once.
        draws: their number; None for as many as a study takes that ranks iterations.

    Raises:
        InputError: a slow link is inside a node (E962).
    """
    known = _KNOWN.setdefault(iteration, {})
    if draws not in known:
        study = Draws.of_scenario(iteration)
        number = study.draws_for_ranking if draws is None else draws
        known[draws] = study.distribution(study.times_s(range(number)))
    return known[draws]


_KNOWN: WeakKeyDictionary[IterationTimeline, dict[int | None, Distribution]] = WeakKeyDictionary()
"""The distributions of iterations that still exist, by the number of draws."""


def ranked_time(iteration: IterationTimeline) -> Distribution | None:
    """Return the drawn time by which studies rank an iteration; None if it does not vary.

    Raises:
        InputError: as `drawn_time`.
    """
    varies = iteration.seconds.plan.scenario.variation.is_set
    return drawn_time(iteration, None) if varies else None


def ranked_time_s(iteration: IterationTimeline) -> float:
    """Return the time by which studies rank an iteration: the mean of draws if it varies.

    Raises:
        InputError: as `drawn_time`.
    """
    drawn = ranked_time(iteration)
    return iteration.time_s if drawn is None else drawn.mean


def draws_of(times: Iterable[Distribution | None]) -> tuple[int, ...] | None:
    """Return how many draws each time that varies is the mean of; None if none varies."""
    return tuple(time.draws for time in times if time) or None


def draws_in_words(draws: Iterable[int] | None) -> list[str]:
    """Say in a sentence that times are means of these numbers of draws; in none if none varies."""
    numbers = sorted(set(draws or ()))
    if not numbers:
        return []
    several = f"{numbers[0]} to " if len(numbers) > 1 else ""
    drawn = counted(numbers[-1], "drawn iteration")
    return [f"Times are means of {several}{drawn} (section variation)."]


def least_share(scenario: Scenario, profile: HardwareProfile) -> float:
    """Return a share of the time without variation that mean draws hardly ever fall below.

    Noise does not shorten the time in the mean, because the longest path is a convex function of
    all durations (Jensen's inequality). GPUs may all be drawn fast. Documents shorten attention, so
    with drawn documents there is no bound.
    """
    variation = scenario.variation
    if variation.sequence_lengths is not None:
        return 0.0
    spread = variation.gpu_spread
    if spread is None:
        spread = profile.variation_entries[1].gpu_spread.value
    return max(0.0, 1.0 - _DEVIATIONS * spread)
