"""Where the measured time of a prediction lies, from how far off predictions of its kind were.

The errors are those of measured runs by machine, software stack, data type and kind of model, which
`hw_profiles/validated_on` lists. `ExpectedErrors.width` says how they become an interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.spread import Spread
from simtrain.hardware.judged_runs import PRIOR, JudgedRuns, judged_runs
from simtrain.hardware.run_kind import DOUBT, RunKind
from simtrain.units import counted, format_seconds


@dataclass(frozen=True, slots=True)
class Interval(PlainData):
    """Where the measured time lies: from p5_s to p95_s in 90 % of runs, p25_s to p75_s in 50 %.

    Args:
        p5_s, p25_s, p75_s, p95_s: times.
        within: the largest difference of the prediction and the 90 % interval's ends, as a share of
            the smaller one.
        least_difference: the smallest difference of two predictions of this kind that can be told,
            as a share: the errors of 90 % of pairs of runs differ by less.
        basis: the runs that it follows from, as a clause.
    """

    json_fields: ClassVar = keys(
        "p5=p5_s p25=p25_s p75=p75_s p95=p95_s within least_difference basis"
    )

    p5_s: float
    p25_s: float
    p75_s: float
    p95_s: float
    within: float
    least_difference: float
    basis: str

    def __repr__(self) -> str:
        return f"<Interval {self.words}>"

    @property
    def ends(self) -> str:
        """The ends of the 90 % interval in words."""
        return f"{format_seconds(self.p5_s)} to {format_seconds(self.p95_s)}"

    @property
    def words(self) -> str:
        """The ends and how far they are from the prediction: "3.41 s to 4.94 s (within 20 %)"."""
        return f"{self.ends} (within {100 * self.within:.0f} %)"

    @property
    def sentence(self) -> str:
        """The 90 % interval and its basis, to follow predicted times."""
        return f"90 % interval of the iteration time: {self.words}; {self.basis}."

    def has(self, time_s: float) -> bool:
        """Whether the 90 % interval contains a time."""
        return self.p5_s <= time_s <= self.p95_s

    def has_in_half(self, time_s: float) -> bool:
        """Whether the 50 % interval contains a time."""
        return self.p25_s <= time_s <= self.p75_s


@dataclass(frozen=True, slots=True)
class ExpectedErrors:
    """How far off predictions of a kind are expected to be.

    Args:
        groups: all judged runs, compared with the kind; perhaps none.
        stated_error: as for `RunKind`. It counts until runs of the kind judge the profile.
    """

    groups: Sequence[JudgedRuns]
    stated_error: float = 0.0

    def width(self, extrapolated: float = 0.0) -> float:
        """Return the log ratio that 90 % of measured times are within.

        The runs that say most about the kind decide, but errors of similar runs are not outside,
        whatever less similar runs promise (`_farthest`). Fewer runs, runs that differ in more
        respects, and more extrapolated time never narrow the interval, and it is never wider than
        the prior. Taking runs away never narrows it, unless they are farther off than it is wide.

        Args:
            extrapolated: share of kernel time for shapes outside the range that the profile was
                fitted on.
        """
        if not self.groups:
            return PRIOR
        least = min(group.width_for_kind(extrapolated) for group in self.groups)
        is_judged = any(not group.respects for group in self.groups)
        stated = 0.0 if is_judged else min(math.log1p(self.stated_error), PRIOR)
        return max(least, self._farthest, stated)

    def around(self, time_s: float, extrapolated: float = 0.0, least_s: float = 0.0) -> Interval:
        """Return the interval of a predicted time.

        Args:
            time_s: the predicted time.
            extrapolated: as for `width`.
            least_s: no iteration is shorter (`least_time.least_seconds`).
        """
        width = self.width(extrapolated)
        spread, least_s = Spread(width), min(least_s, time_s)
        whole, half = spread.factor(), spread.factor(0.5)
        return Interval(
            max(time_s / whole, least_s),
            max(time_s / half, least_s),
            time_s * half,
            time_s * whole,
            whole - 1,
            self._least_difference(extrapolated, width),
            self._basis(extrapolated),
        )

    @property
    def _farthest(self) -> float:
        """The errors of similar runs: the largest of those that each respect suggests.

        A respect suggests the most similar runs that do not differ in it: dense runs of the same
        machine do not say how far off experts are, experts on other machines do. If all runs differ
        in it, as on a machine of which nothing was judged, any other may be the one to expect.
        """
        names = {name for group in self.groups for name in group.names}
        return max(map(self._suggested_by, names), default=_mean_farthest(self.groups))

    def _suggested_by(self, name: str) -> float:
        alike = [group for group in self.groups if name not in group.names]
        if alike:
            return _mean_farthest(alike)
        by_value: dict[str, list[JudgedRuns]] = {}
        for group in self.groups:
            by_value.setdefault(group.value_of(name), []).append(group)
        return max(map(_mean_farthest, by_value.values()))

    def _least_difference(self, extrapolated: float, width: float) -> float:
        """Return what 90 % of pairs' errors are below; without pairs, as if the pairs were runs."""
        group = self._deciding(extrapolated)
        if group is None or group.runs.pairs is None:
            return math.expm1(width)
        return math.expm1(math.log1p(group.runs.pairs.p90) * max(1.0, width / group.width))

    def _deciding(self, extrapolated: float) -> JudgedRuns | None:
        """Return the runs that say most about the kind; of equal ones, the most similar."""
        return min(
            self.groups,
            key=lambda group: (group.width_for_kind(extrapolated), len(group.respects)),
            default=None,
        )

    def _basis(self, extrapolated: float) -> str:
        """Say in plain words which runs are most like the scenario."""
        if not self.groups:
            return "no run was compared"
        nearest = _nearest(self.groups)
        if not nearest[0].respects:
            number = counted(sum(group.runs.num_runs for group in nearest), "measured run")
            also = f"; {extrapolated:.0%} of kernel time is extrapolated"
            return f"from {number} like this one{also * (extrapolated >= 0.005)}"
        group = self._deciding(extrapolated)
        if group not in nearest:
            group = max(nearest, key=lambda each: each.runs.num_runs)
        *names, last = (name for name in group.names if name != DOUBT)
        differ = f"{', '.join(names)} and {last}" if names else last
        doubt = "; the profile is doubtful" * (DOUBT in group.names)
        number = counted(group.runs.num_runs, "measured run")
        on = Path(group.cluster).stem
        return f"none like this one was compared; {number} on {on} differ in {differ}{doubt}"


def _mean_farthest(groups: Sequence[JudgedRuns]) -> float:
    """Return the mean error of the most similar classes, each of which counts as one."""
    nearest = _nearest(groups)
    return math.fsum(group.farthest for group in nearest) / len(nearest)


def _nearest(groups: Sequence[JudgedRuns]) -> list[JudgedRuns]:
    """Return the runs that differ from the kind in the fewest respects."""
    fewest = min((len(group.respects) for group in groups), default=0)
    return [group for group in groups if len(group.respects) == fewest]


def errors_of(kind: RunKind) -> ExpectedErrors:
    """Return how far off predictions of a kind are expected to be.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    return ExpectedErrors(judged_runs(kind), kind.stated_error)
