"""All measured runs with which predictions were compared, and how much they say about a kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.base.resources import list_profiles
from simtrain.base.spread import Spread
from simtrain.hardware.run_kind import DOUBT, NUM_RESPECTS, Respect, RunKind, differences
from simtrain.hardware.validated_on import MeasuredRuns, validated_on

PRIOR = math.log(1.6)
"""Nine of ten measured times are within a factor of 1.6 of any prediction.

This is what is assumed of runs that are like none that was compared, and the widest interval that
is stated. Of the classes of 20 and more judged runs in `hw_profiles/validated_on`, the one that is
farthest off (deepspeed_2022 on several nodes) has 90 % of its runs within a factor of 1.5.
"""
_PRIOR_RUNS = 1
"""The prior counts as much as this number of measured runs."""
_OF_RESPECT = PRIOR**2 / NUM_RESPECTS
"""Squared width for each respect in which runs differ.

The prior's, divided evenly: runs that differ in all respects say no more than the prior.
"""


@dataclass(frozen=True, slots=True)
class JudgedRuns:
    """Measured runs of one class, compared with a kind.

    Args:
        runs: the runs and their errors.
        cluster: their machine.
        respects: in what they differ from the kind.
    """

    runs: MeasuredRuns
    cluster: str
    respects: tuple[Respect, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the respects."""
        return tuple(respect.name for respect in self.respects)

    def value_of(self, name: str) -> str:
        """Return the runs' value in a respect in which they differ."""
        return next(respect.of_runs for respect in self.respects if respect.name == name)

    @property
    def farthest(self) -> float:
        """Log ratio that 90 % of these runs are within: their farther quantile.

        Of few runs, what their mean error says of a distribution of the form of `Spread`, and no
        more than their worst error.
        """
        quantiles = self.runs.quantiles
        if quantiles:
            farther = max(abs(math.log1p(error)) for error in (quantiles.p5, quantiles.p95))
            return min(farther, PRIOR)
        worst = abs(math.log1p(self.runs.worst_error))
        return min(Spread.of_mean(self.runs.mean_error).width, worst, PRIOR)

    @property
    def width(self) -> float:
        """Log ratio that 90 % of further runs of the class are within.

        The runs' own, shrunk towards the prior: n of n + 1 parts are theirs.
        """
        num_runs = self.runs.num_runs
        return (num_runs * self.farthest + _PRIOR_RUNS * PRIOR) / (num_runs + _PRIOR_RUNS)

    def width_for_kind(self, extrapolated: float) -> float:
        """Return the log ratio that 90 % of runs of the kind are within, by these runs alone.

        Args:
            extrapolated: share of kernel time for shapes outside the range that the profile was
                fitted on: such time counts twice. All time does if the profile is doubtful and
                these runs do not judge it.
        """
        width = self.width * (2.0 if DOUBT in self.names else 1 + extrapolated)
        return min(math.sqrt(width**2 + len(self.respects) * _OF_RESPECT), PRIOR)


def judged_runs(kind: RunKind) -> list[JudgedRuns]:
    """Return all classes of measured runs, each compared with a kind.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    clusters = dict.fromkeys((kind.cluster, *list_profiles()))
    return [group for cluster in clusters for group in _judged_on(cluster, kind)]


def _judged_on(cluster: str, kind: RunKind) -> Iterator[JudgedRuns]:
    errors = validated_on(cluster)
    if errors is None:
        return
    for runs in errors.measured_runs:
        yield JudgedRuns(runs, cluster, differences(kind, runs, cluster))
    if others := errors.other_software:
        yield JudgedRuns(others, cluster, differences(kind, others, cluster, mixed=True))
