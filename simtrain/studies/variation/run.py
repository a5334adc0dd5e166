"""Draw an iteration many times, and say how its time is distributed and why."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from simtrain.base.extras import require
from simtrain.base.request import takes
from simtrain.engine.compiled import Floats
from simtrain.errors import InputError, Location
from simtrain.hardware.entries import entries_of
from simtrain.hardware.sections import VariationEntries
from simtrain.iteration.report.result import Result
from simtrain.studies.draw_request import DEFAULT_DRAWS, DrawRequest
from simtrain.studies.simulation import result_of
from simtrain.studies.sweep.executors import connect, local_executor
from simtrain.studies.variation.distribution import Distribution
from simtrain.studies.variation.draws import Draws
from simtrain.studies.variation.limits import check_numbers
from simtrain.studies.variation.result import DrawnTimes, Reason, UsedEntry

_MOST_OF_REASONS = 100
"""Draws from which reasons are computed."""
_LEAST_SHOWN = 5e-4
"""Changes below this part of the iteration are no reason."""
_OTHER_MACHINES = 8
"""Seeds whose machines say how far the mean of one seed may be off."""
_PART = 50
"""Draws of a task for a worker."""

OnProgress = Callable[[str, int, int], None]


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
    study = Draws.of_scenario(result.iteration, request.seed)
    profile, entries = result.profile.variation_entries
    with _executor(request) as executor:
        times_s = _drawn_times_s(study, request.draws, executor, on_progress)
    on_progress("reasons", 0, 1)
    reasons, idle = _reasons(study, min(request.draws, _MOST_OF_REASONS))
    return DrawnTimes(
        scenario=result.scenario.name,
        draws=request.draws,
        seed=request.seed,
        usual_s=study.usual_s,
        time=_with_other_machines(study, study.distribution(times_s)),
        num_ranks=result.scenario.num_gpus,
        num_simulated_ranks=study.drawn.num_simulated_ranks,
        reasons=tuple(reasons),
        without_effect=tuple(f"variation.{name}" for name in idle),
        entries=tuple(used_entries(result, entries)),
        entries_of=profile,
        times_s=times_s,
    )


def _with_other_machines(study: Draws, time: Distribution) -> Distribution:
    """Add the error of a mean over the draws of one seed, which all have the same machines."""
    sources = tuple(each for each in study.sources if each[1].is_of_seed)
    if not sources:
        return time
    seeds = range(study.seed + 1, study.seed + 1 + _OTHER_MACHINES)
    means_s = [Draws.of(study.iteration, sources, seed).times_s(range(1))[0] for seed in seeds]
    between_s = float(np.std(means_s, ddof=1))
    return replace(time, mean_error=math.hypot(time.mean_error, between_s))


def mean_time_s(result: Result) -> float:
    """Return the mean time of an iteration whose scenario varies, over 100 draws; else its time.

    Raises:
        InputError: as `draw`.
    """
    if not result.scenario.variation.is_set:
        return result.iteration_time_s
    study = Draws.of_scenario(result.iteration)
    return study.distribution(study.times_s(range(DEFAULT_DRAWS))).mean


def draw_if_varied(result: Result) -> DrawnTimes | None:
    """Draw the iteration of a result if its scenario sets a field of `variation`.

    Raises:
        InputError: as `draw`.
    """
    return draw(result) if result.scenario.variation.is_set else None


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


def _drawn_times_s(
    study: Draws, draws: int, executor: Executor | None, on_progress: OnProgress
) -> Floats:
    """Return [draws], the times of the iterations, from this process or an executor."""
    parts = [range(first, min(first + _PART, draws)) for first in range(0, draws, _PART)]
    if executor is None:
        drawn = []
        for part in parts:
            on_progress("draws", part.start, draws)
            drawn.append(study.times_s(part))
        return np.concatenate(drawn)
    inputs = pickle.dumps((study.iteration, study.sources, study.seed))
    try:
        futures = [executor.submit(_times_s, inputs, part) for part in parts]
        for part, future in zip(parts, futures, strict=True):
            on_progress("draws", part.start, draws)
            future.result()
    except BrokenExecutor as error:
        raise worker_died() from error
    return np.concatenate([future.result() for future in futures])


def worker_died() -> InputError:
    """Build the error for a worker process that ended by itself."""
    reason = "the system ends processes when memory runs out, and libraries can crash"
    fix = "write fewer --workers; with 1 this process shows what happens"
    return InputError.of("E836", "a worker died", Location("--workers"), fix, reason)


def _reasons(study: Draws, draws: int) -> tuple[list[Reason], list[str]]:
    """Return what makes iterations longer or shorter, the most first; and idle fields.

    Fields are idle if their sources, alone, change no draw.
    """
    reasons, idle, usual_s = [], [], study.usual_s
    variation = study.iteration.seconds.plan.scenario.variation
    for number, source in study.sources:
        alone = Draws.of(study.iteration, ((number, source),), study.seed)
        time = alone.distribution(alone.times_s(range(draws)))
        reasons.append(Reason(source.name, source.words, time.mean / usual_s - 1))
        changes_nothing = time.least == time.most == usual_s and not source.is_rare
        if changes_nothing and getattr(variation, source.name) is not None:
            idle.append(source.name)
    if study.drawn.tasks.num_replicas > 1:
        reasons.append(_barrier(study, range(draws)))
    reasons = [reason for reason in reasons if abs(reason.change) >= _LEAST_SHOWN]
    return sorted(reasons, key=lambda reason: -abs(reason.change)), idle


def _barrier(study: Draws, draws: range) -> Reason:
    replicas = study.drawn.tasks.layout.mesh.dp
    together_s = study.times_s(draws)
    alone_s = study.drawn.times_s(study.seed, draws, waits=False)
    words = f"the data-parallel barrier waits for the slowest of {replicas:,} replicas"
    return Reason("barrier", words, float(together_s.mean() / alone_s.mean()) - 1)


@contextmanager
def _executor(request: DrawRequest) -> Iterator[Executor | None]:
    """Yield what draws; None for this process."""
    workers = min(request.workers, -(-request.draws // _PART))
    if request.ray is not None:
        require("--ray", "ray", "pyarrow")
        executor: Executor = connect(request.ray)
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
def _study(pickled: bytes) -> Draws:
    """The draws of this worker."""
    return Draws.of(*pickle.loads(pickled))


def _times_s(inputs: bytes, part: range) -> Floats:
    return _study(inputs).times_s(part)
