"""Draw an iteration many times, and say how its time is distributed and why."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from simtrain.base.extras import require
from simtrain.base.request import takes
from simtrain.engine.compiled import Floats
from simtrain.hardware.entries import entries_of
from simtrain.hardware.load import load_profile, profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.variation import VariationEntries
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.report.result import Result
from simtrain.iteration.variation.drawn import DrawnIteration, sources_of
from simtrain.iteration.variation.sources.source import Source
from simtrain.scenario import Scenario
from simtrain.studies.draw_request import DEFAULT_DRAWS, DrawRequest
from simtrain.studies.search.workers import worker_died
from simtrain.studies.simulation import result_of, simulate
from simtrain.studies.sweep.executors import local_executor
from simtrain.studies.sweep.ray_executor import Needs, connect
from simtrain.studies.sweep.versions import versions
from simtrain.studies.variation.data_queue import intervals_s
from simtrain.studies.variation.distribution import Distribution
from simtrain.studies.variation.limits import check_numbers, check_plan
from simtrain.studies.variation.result import DrawnTimes, Reason, UsedEntry

FALLBACK = "h100_sxm"
"""Whose variation stands in for that of a profile without any."""
_MOST_OF_REASONS = 100
"""Draws from which reasons are computed."""
_LEAST_SHOWN = 5e-4
"""Changes below this part of the iteration are no reason."""

_PART = 50
"""Draws of a task for a worker."""

OnProgress = Callable[[str, int, int], None]
NumberedSource = tuple[int, Source]


def _silent(phase: str, done: int, total: int) -> None:
    """Show nothing."""


@takes(DrawRequest)
def draw(request: DrawRequest) -> DrawnTimes:
    """Draw the iteration of a scenario many times: every replica and rank that differs, by itself.

    Raises:
        InputError: a number is out of its range (E960), a slow link is inside a node (E962), or as
            `simulate`.
    """
    return draw_with_progress(request)


def draw_with_progress(request: DrawRequest, on_progress: OnProgress = _silent) -> DrawnTimes:
    """As `draw`; `on_progress` gets a phase, and how many of its draws are done."""
    check_numbers(request)
    result = result_of(request.scenario)
    check_plan(result.plan)
    profile, entries = entries_for(result.profile)
    sources = sources_of(result.iteration, entries)
    study = _Study.of(result.iteration, sources, request.seed)
    with _executor(request) as executor:
        times_s = study.times_s(request.draws, executor, on_progress)
    on_progress("reasons", 0, 1)
    reasons, idle = study.reasons(min(request.draws, _MOST_OF_REASONS))
    return DrawnTimes(
        scenario=result.scenario.name,
        draws=request.draws,
        seed=request.seed,
        usual_s=study.usual_s,
        time=study.distribution(times_s),
        num_ranks=result.scenario.num_gpus,
        num_simulated_ranks=study.drawn.num_simulated_ranks,
        reasons=tuple(reasons),
        without_effect=tuple(f"variation.{name}" for name in idle),
        entries=tuple(used_entries(result, entries)),
        entries_of=profile,
        times_s=times_s,
    )


def mean_time_s(result: Result) -> float:
    """Return the mean time of an iteration whose scenario varies; else its only time.

    Raises:
        InputError: as `draw`.
    """
    varies = result.scenario.variation.is_set
    return _draw_times(result).mean if varies else result.iteration_time_s


def draw_times(scenario: Scenario) -> Distribution:
    """Return the distribution of an iteration's time over 100 draws with seed 0, without reasons.

    Raises:
        InputError: as `draw`.
    """
    return _draw_times(simulate(scenario))


def _draw_times(result: Result) -> Distribution:
    check_plan(result.plan)
    sources = sources_of(result.iteration, entries_for(result.profile)[1])
    study = _Study.of(result.iteration, sources, 0)
    return study.distribution(study.times_s(DEFAULT_DRAWS))


def draw_if_varied(result: Result) -> DrawnTimes | None:
    """Draw the iteration of a result if its scenario sets a field of `variation`.

    Raises:
        InputError: as `draw`.
    """
    return draw(result) if result.scenario.variation.is_set else None


def entries_on(scenario: Scenario) -> VariationEntries:
    """Return the entries of the profile of a scenario, or those that stand in."""
    return entries_for(profile_of(scenario))[1]


def entries_for(profile: HardwareProfile) -> tuple[str, VariationEntries]:
    """Return the entries of a profile, or those that stand in, with the name of their profile."""
    if profile.variation is not None:
        return profile.name, profile.variation
    fallback = load_profile(FALLBACK)
    assert fallback.variation is not None, "the fallback has entries"
    return fallback.name, fallback.variation


def used_entries(result: Result, entries: VariationEntries) -> Iterator[UsedEntry]:
    """Yield the entries of a profile that the scenario leaves to it."""
    variation = result.scenario.variation
    pauses = variation.pauses
    written = {
        "kernels": variation.kernels,
        "collectives": variation.collectives,
        "gpu_spread": variation.gpu_spread,
        "pauses.per_gpu_hour": pauses and pauses.per_gpu_hour,
        "pauses.duration": pauses and pauses.duration,
    }
    for name, entry in entries_of(entries):
        if written[name] is None:
            yield UsedEntry(f"variation.{name}", float(entry.value), entry.source)


@dataclass(frozen=True, slots=True, eq=False)
class _Study:
    """An iteration with its sources of variation, and a seed."""

    iteration: IterationTimeline
    sources: tuple[NumberedSource, ...]
    seed: int
    drawn: DrawnIteration

    @classmethod
    def of(
        cls, iteration: IterationTimeline, sources: tuple[NumberedSource, ...], seed: int
    ) -> _Study:
        """Prepare the draws."""
        return cls(iteration, sources, seed, DrawnIteration.of(iteration, sources, seed))

    @property
    def usual_s(self) -> float:
        """Time of the iteration without variation."""
        return self.iteration.time_s

    def times_s(
        self, draws: int, executor: Executor | None = None, on_progress: OnProgress = _silent
    ) -> Floats:
        """Return [draws], the times of the iterations, from this process or an executor."""
        parts = [range(first, min(first + _PART, draws)) for first in range(0, draws, _PART)]
        if executor is None:
            drawn = []
            for part in parts:
                on_progress("draws", part.start, draws)
                drawn.append(self.drawn.times_s(self.seed, part))
            return np.concatenate(drawn)
        inputs = pickle.dumps((self.iteration, self.sources, self.seed))
        try:
            futures = [executor.submit(_times_s, inputs, part) for part in parts]
            for part, future in zip(parts, futures, strict=True):
                on_progress("draws", part.start, draws)
                future.result()
        except BrokenExecutor as error:
            raise worker_died() from error
        return np.concatenate([future.result() for future in futures])

    def distribution(self, times_s: Floats) -> Distribution:
        """Return the distribution of the time from one iteration to the next."""
        periods = []
        for _, source in self.sources:
            if period := source.period():
                periods.append(period)
            if loading := source.load_s():
                times_s = intervals_s(times_s, *loading)
        return Distribution.of(times_s, self.usual_s, periods)

    def reasons(self, draws: int) -> tuple[list[Reason], list[str]]:
        """Return what makes iterations longer or shorter, the most first; and idle fields.

        Fields are idle if their sources, alone, change no draw.
        """
        reasons, idle = [], []
        variation = self.iteration.seconds.plan.scenario.variation
        for number, source in self.sources:
            alone = _Study.of(self.iteration, ((number, source),), self.seed)
            time = alone.distribution(alone.times_s(draws))
            reasons.append(Reason(source.name, source.words, time.mean / self.usual_s - 1))
            changes_nothing = time.least == time.most == self.usual_s and not source.is_rare
            if changes_nothing and getattr(variation, source.name) is not None:
                idle.append(source.name)
        if self.drawn.tasks.num_replicas > 1:
            reasons.append(self._barrier(draws))
        reasons = [reason for reason in reasons if abs(reason.change) >= _LEAST_SHOWN]
        return sorted(reasons, key=lambda reason: -abs(reason.change)), idle

    def _barrier(self, draws: int) -> Reason:
        replicas = self.drawn.tasks.layout.mesh.dp
        part = range(draws)
        together_s = self.drawn.times_s(self.seed, part)
        alone_s = self.drawn.times_s(self.seed, part, waits=False)
        words = f"the data-parallel barrier waits for the slowest of {replicas:,} replicas"
        return Reason("barrier", words, float(together_s.mean() / alone_s.mean()) - 1)


@contextmanager
def _executor(request: DrawRequest) -> Iterator[Executor | None]:
    """Yield what draws; None for this process."""
    workers = min(request.workers, -(-request.draws // _PART))
    if request.ray is not None:
        require("--ray", "ray", "pyarrow")
        executor: Executor = connect(request.ray, Needs(versions(), {}))
    elif workers < 2:
        yield None
        return
    else:
        executor = local_executor(workers)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


@functools.lru_cache(maxsize=1)
def _study(pickled: bytes) -> _Study:
    """The study of this worker."""
    return _Study.of(*pickle.loads(pickled))


def _times_s(inputs: bytes, part: range) -> Floats:
    return _study(inputs).drawn.times_s(_study(inputs).seed, part)
