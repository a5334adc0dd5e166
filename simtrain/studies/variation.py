"""Draw an iteration many times, and say how its time is distributed and why.

All draws with a seed have the same random numbers, so scenarios with equal tasks differ by what was
changed.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.request import takes
from simtrain.base.values import dataclass, field, replace
from simtrain.engine.compiled import Floats
from simtrain.errors import InputError
from simtrain.hardware.load import variation_of
from simtrain.iteration.plan import Plan
from simtrain.iteration.report.remarks import RunReport
from simtrain.iteration.report.result import Result
from simtrain.iteration.variation.drawn import DrawnIteration, sources_of
from simtrain.studies.answer import json_text
from simtrain.studies.requests import DrawRequest, check_whole
from simtrain.studies.simulation import result_of
from simtrain.units import format_seconds

_MOST_DRAWS = 1_000_000
_MOST_OF_REASONS = 100
"""Draws from which reasons are computed."""
_LEAST_SHOWN = 5e-4
"""Changes below this part of the iteration are no reason."""
_OTHER_MACHINES = 8
"""Seeds whose machines say how far the mean of one seed may be off."""
_PART = 50
"""Draws between two reports of progress."""
_NORMAL_95 = 1.96
"""Standard errors of a mean on either side of it, within which it is with 95 %."""


@dataclass(frozen=True, slots=True)
class Distribution(PlainData):
    """The distribution of an iteration's time.

    Args:
        p5, p50, p95, p99: percentiles: that share of iterations takes at most so long.
    """

    json_fields: ClassVar = keys(
        "mean mean_error mean_low mean_high least p5 p50 p95 p99 most deviation"
    )

    draws: int
    mean: float
    mean_error: float
    deviation: float
    least: float
    p5: float
    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, times_s: Floats, usual_s: float) -> Distribution:
        """Return the distribution of drawn times.

        Args:
            times_s: [draws].
            usual_s: the time without variation, from which the mean is computed, so that draws
                without a difference have exactly this mean.
        """
        number = len(times_s)
        excess_s = [float(time_s) - usual_s for time_s in times_s]
        mean_excess_s = math.fsum(excess_s) / number
        squares = math.fsum((excess - mean_excess_s) ** 2 for excess in excess_s)
        variance = squares / max(1, number - 1)
        ordered_s = np.sort(times_s)
        places = (math.ceil(share * number - 1e-9) - 1 for share in (0, 0.05, 0.5, 0.95, 0.99, 1))
        percentiles = (float(ordered_s[max(0, place)]) for place in places)
        deviation, mean = math.sqrt(variance), usual_s + mean_excess_s
        return cls(number, mean, math.sqrt(variance / number), deviation, *percentiles)

    @property
    def mean_low(self) -> float:
        """Lower end of the interval in which the mean is with 95 %."""
        return self.mean - _NORMAL_95 * self.mean_error

    @property
    def mean_high(self) -> float:
        """Upper end of the interval in which the mean is with 95 %."""
        return self.mean + _NORMAL_95 * self.mean_error


@dataclass(frozen=True, slots=True)
class Reason(PlainData):
    """A source of variation, or the barrier, and how much longer it makes iterations.

    Args:
        change: mean time with this source alone relative to none, minus 1; of the barrier, with
            all sources relative to replicas that do not wait for each other.
    """

    name: str
    words: str
    change: float


@dataclass(frozen=True, slots=True)
class DrawnTimes(PlainData):
    """The iteration of a scenario, drawn many times.

    Args:
        usual_s: time of the iteration without variation.
        num_simulated_ranks: ranks that are simulated each.
        times_s: [draws], the drawn times.
    """

    json_fields: ClassVar = keys(
        """draws seed usual_s iteration_time_s=time slowdown num_simulated_ranks reasons"""
    )

    scenario: str | None
    draws: int
    seed: int
    usual_s: float
    time: Distribution
    num_ranks: int
    num_simulated_ranks: int
    reasons: tuple[Reason, ...]
    times_s: Floats = field(repr=False)

    def __repr__(self) -> str:
        ends = f"{format_seconds(self.time.mean)}, {format_seconds(self.usual_s)} without variation"
        return f"<DrawnTimes {self.scenario or 'unnamed'}: {ends}, {self.draws} draws>"

    @property
    def slowdown(self) -> float:
        return self.time.mean / self.usual_s


@dataclass(frozen=True, slots=True)
class VariedRun(PlainData):
    """What `simtrain run --format json` prints: a result, what is said of it, and its draws."""

    json_fields: ClassVar = keys("**report variation")
    json_omits_none: ClassVar = frozenset({"variation"})

    report: RunReport
    variation: DrawnTimes | None = None


def result_json(result: Result) -> str:
    """Return what `simtrain run --format json` prints."""
    report = RunReport(result)
    data = VariedRun(report, draw_if_varied(result)).to_dict()
    return json_text(data, result.scenario.cluster)


@takes(DrawRequest)
def draw(request: DrawRequest) -> DrawnTimes:
    """Draw the iteration of a scenario many times: every replica and rank that differs, by itself.

    Raises:
        InputError: a number is out of its range (E960), a slow link is inside a node (E962), or as
            `simulate`.
    """
    check_whole("E960", "--draws", request.draws, 1, _MOST_DRAWS)
    check_whole("E960", "--seed", request.seed, 0, 2**64 - 1)
    result = result_of(request.scenario)
    study = _study(result, request.seed)
    times_s = []
    for first in range(0, request.draws, _PART):
        request.on_progress("draws", first, request.draws)
        part = range(first, min(first + _PART, request.draws))
        times_s.append(study.times_s(request.seed, part))
    request.on_progress("reasons", 0, 1)
    reasons = _reasons(study, request.seed, min(request.draws, _MOST_OF_REASONS))
    drawn_s, usual_s = np.concatenate(times_s), result.iteration.time_s
    time = Distribution.of(drawn_s, usual_s)
    return DrawnTimes(
        scenario=result.scenario.name,
        draws=request.draws,
        seed=request.seed,
        usual_s=usual_s,
        time=_with_other_machines(study, request.seed, time),
        num_ranks=result.scenario.num_gpus,
        num_simulated_ranks=study.num_simulated_ranks,
        reasons=tuple(reasons),
        times_s=drawn_s,
    )


def mean_time_s(result: Result) -> float:
    """Return the mean time of an iteration whose scenario varies, over 100 draws; else its time."""
    if not result.scenario.variation.is_set:
        return result.iteration_time_s
    times_s = _study(result, 0).times_s(0, range(100))
    return Distribution.of(times_s, result.iteration.time_s).mean


def draw_if_varied(result: Result) -> DrawnTimes | None:
    """Draw the iteration of a result if its scenario sets a field of `variation`."""
    return draw(result) if result.scenario.variation.is_set else None


def _study(result: Result, seed: int) -> DrawnIteration:
    _check_link(result.iteration.seconds.plan)
    _, entries = variation_of(result.profile)
    return DrawnIteration.of(result.iteration, sources_of(result.iteration, entries), seed)


def _with_other_machines(study: DrawnIteration, seed: int, time: Distribution) -> Distribution:
    """Add the error of a mean over the draws of one seed, which all have the same machines."""
    sources = tuple(each for each in study.sources if each[1].is_of_seed)
    if not sources:
        return time
    seeds = range(seed + 1, seed + 1 + _OTHER_MACHINES)
    means_s = [
        DrawnIteration.of(study.iteration, sources, other).times_s(other, range(1))[0]
        for other in seeds
    ]
    between_s = float(np.std(means_s, ddof=1))
    return replace(time, mean_error=math.hypot(time.mean_error, between_s))


def _reasons(study: DrawnIteration, seed: int, draws: int) -> list[Reason]:
    """Return what makes iterations longer or shorter, the most first."""
    iteration, every, reasons = study.iteration, range(draws), []
    for number, source in study.sources:
        alone = DrawnIteration.of(iteration, ((number, source),), seed)
        time = Distribution.of(alone.times_s(seed, every), iteration.time_s)
        reasons.append(Reason(source.name, source.words, time.mean / iteration.time_s - 1))
    if study.tasks.num_replicas > 1:
        together_s = study.times_s(seed, every)
        alone_s = study.times_s(seed, every, waits=False)
        replicas = study.tasks.layout.mesh.dp
        words = f"the data-parallel barrier waits for the slowest of {replicas:,} replicas"
        change = float(together_s.mean() / alone_s.mean()) - 1
        reasons.append(Reason("barrier", words, change))
    reasons = [reason for reason in reasons if abs(reason.change) >= _LEAST_SHOWN]
    return sorted(reasons, key=lambda reason: -abs(reason.change))


def _check_link(plan: Plan) -> None:
    scenario, mesh = plan.scenario, plan.mesh
    slow = scenario.variation.slow
    if slow is None or slow.what != "link" or mesh.num_ranks > mesh.gpus_per_node:
        return
    raise InputError.of(
        "E962",
        f"variation.slow is a link, but all {mesh.num_ranks} GPUs share a node",
        scenario.positions.of_value(("variation", "slow", "what")),
        fix="write what: gpu, or use GPUs of several nodes",
        reason="a link is what connects a node with other nodes",
    )
