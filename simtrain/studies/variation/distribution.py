"""The distribution of a time over draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine.compiled import Floats

_NORMAL_95 = 1.96
"""Standard errors of a mean on either side of it, within which it is with 95 %."""


@dataclass(frozen=True, slots=True)
class Distribution(PlainData):
    """The distribution of an iteration's time.

    Args:
        draws: their number.
        mean: over all draws.
        mean_error: standard error of the mean.
        deviation: standard deviation of the iterations.
        least, most: the shortest and the longest.
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
    def of(cls, times_s: Floats, usual_s: float, periods: Sequence[tuple[int, float]] = ()) -> Self:
        """Return the distribution of drawn times.

        Args:
            times_s: [draws].
            usual_s: the time without variation, from which the mean is computed, so that draws
                without a difference have exactly this mean.
            periods: work between iterations: each comes once in a number of iterations and takes a
                time. It is counted exactly: every draw stands for iterations with it and without.
        """
        excess_s = [float(time_s) - usual_s for time_s in times_s]
        mean_excess_s = math.fsum(excess_s) / len(excess_s)
        squares = math.fsum((excess - mean_excess_s) ** 2 for excess in excess_s)
        of_draws = squares / max(1, len(excess_s) - 1)
        values, weights = times_s, np.full(len(times_s), 1 / len(times_s))
        variance = of_draws
        for every, time_s in periods:
            share = 1 / every
            values = np.concatenate([values, values + time_s])
            weights = np.concatenate([weights * (1 - share), weights * share])
            variance += share * (1 - share) * time_s**2
        order = np.argsort(values, kind="stable")
        order = order[weights[order] > 0]
        values, reached = values[order], np.cumsum(weights[order])
        # Rounding may leave a sum of weights a little below the share that it stands for.
        places = np.searchsorted(reached, np.array([0.05, 0.5, 0.95, 0.99]) - 1e-9)
        p5, p50, p95, p99 = values[np.minimum(places, len(values) - 1)].tolist()
        return cls(
            draws=len(times_s),
            mean=usual_s + mean_excess_s + math.fsum(time_s / every for every, time_s in periods),
            mean_error=math.sqrt(of_draws / len(excess_s)),
            deviation=math.sqrt(variance),
            least=float(values[0]),
            p5=p5,
            p50=p50,
            p95=p95,
            p99=p99,
            most=float(values[-1]),
        )

    @property
    def mean_low(self) -> float:
        """Lower end of the interval in which the mean is with 95 %."""
        return self.mean - _NORMAL_95 * self.mean_error

    @property
    def mean_high(self) -> float:
        """Upper end of the interval in which the mean is with 95 %."""
        return self.mean + _NORMAL_95 * self.mean_error
