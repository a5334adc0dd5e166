"""Where the measured time of a prediction lies, from how far off predictions of its kind were.

The errors are those of measured runs by machine, software stack, data type and kind of model, which
`hw_profiles/validated_on` lists; `simtrain.hardware.error_model` says what they let expect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.spread import Spread
from simtrain.hardware.error_model import ErrorModel, ExpectedScale, error_model
from simtrain.hardware.judged_runs import JudgedRuns, judged_runs, traits_of
from simtrain.hardware.run_kind import Respect, RunKind, differences
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
        is_lower_bound: whether the prediction is a lower bound. The interval then begins with it,
            and its words do not name the other end.
    """

    json_fields: ClassVar = keys(
        """p5=p5_s p25=p25_s p75=p75_s p95=p95_s within least_difference basis
        is_lower_bound"""
    )

    p5_s: float
    p25_s: float
    p75_s: float
    p95_s: float
    within: float
    least_difference: float
    basis: str
    is_lower_bound: bool = False

    def __repr__(self) -> str:
        return f"<Interval {self.words}>"

    @property
    def ends(self) -> str:
        """The ends of the 90 % interval in words; of a lower bound, "3.41 s or more"."""
        if self.is_lower_bound:
            return f"{format_seconds(self.p5_s)} or more"
        return f"{format_seconds(self.p5_s)} to {format_seconds(self.p95_s)}"

    @property
    def within_words(self) -> str:
        """How far from the prediction nine of ten runs stay: "within 7 % nine times in ten"."""
        if self.is_lower_bound:
            return "a lower bound"
        return f"within {100 * self.within:.0f} % nine times in ten"

    @property
    def words(self) -> str:
        """The same with the ends: "within 20 % nine times in ten (3.41 s to 4.94 s)"."""
        if self.is_lower_bound:
            return self.ends
        return f"{self.within_words} ({self.ends})"

    @property
    def sentence(self) -> str:
        """The 90 % interval and its basis, to follow predicted times."""
        return f"The measured time is {self.words}; {self.basis}."

    def has(self, time_s: float) -> bool:
        """Whether the 90 % interval contains a time."""
        return self.p5_s <= time_s <= self.p95_s

    def has_in_half(self, time_s: float) -> bool:
        """Whether the 50 % interval contains a time."""
        return self.p25_s <= time_s <= self.p75_s


_OF_DOUBT = math.log(1.6)
"""Half the log width of the 90 % interval on a machine whose profile rests on datasheets or on
contradicting sources, and of which no run was judged: an assumption, not an estimate."""

_OF_HOST = 0.91
"""|ln(measured / predicted)| over the host-bound share that nine in ten runs stay below.

Of 161 host-bound tests of Megatron-Core that no number was fitted to (simtrain docs software).
"""
_WIDEST = math.log(2)
"""No interval reaches farther: a time that is off by more than a factor of two is another one."""


@dataclass(frozen=True, slots=True)
class ExpectedErrors:
    """How far off predictions of a kind are expected to be.

    Args:
        kind: the kind.
        groups: all judged runs; perhaps none.
        model: the model of errors.
    """

    kind: RunKind
    groups: Sequence[JudgedRuns]
    model: ErrorModel

    def width(
        self, extrapolated: float = 0.0, share: float = 0.9, host_bound: float = 0.0
    ) -> float:
        """Return the |ln(measured / predicted)| that a share of runs stays within.

        For 90 % of runs it is at most a factor of two, and at least what nine in ten runs of the
        kind were off by. Without any, it is at least what the profile states of its own fit, and
        on a doubtful profile twice what the most similar runs were off by. Runs that wait for the
        host are as far off as others that did. Nothing tells how far runs stay from a lower bound:
        a factor of two is an assumption.

        Args:
            extrapolated: share of kernel time for shapes outside the range that the profile was
                fitted on.
            share: the share of runs.
            host_bound: share of the passes' time in which GPUs wait for the host.
        """
        # Of the least width only nine of ten are stated; other shares follow Laplace's form.
        of_share = math.log(1 - share) / math.log(0.1)
        if self.kind.is_lower_bound:
            return of_share * _WIDEST
        least = self._least_width * math.exp(self.model.extrapolated * extrapolated)
        least = max(least, _OF_HOST * host_bound)
        width = max(self._scale(extrapolated).width(share), of_share * least)
        return min(width, of_share * _WIDEST)

    def around(
        self,
        time_s: float,
        extrapolated: float = 0.0,
        least_s: float = 0.0,
        host_bound: float = 0.0,
    ) -> Interval:
        """Return the interval of a predicted time.

        Args:
            time_s: the predicted time.
            extrapolated, host_bound: as for `width`.
            least_s: no iteration is shorter (`least_time.least_seconds`).
        """
        is_bound = self.kind.is_lower_bound
        least_s = time_s if is_bound else min(least_s, time_s)
        whole, half = (
            math.exp(self.width(extrapolated, share, host_bound)) for share in (0.9, 0.5)
        )
        return Interval(
            max(time_s / whole, least_s),
            max(time_s / half, least_s),
            time_s * half,
            time_s * whole,
            whole - 1,
            self._least_difference(extrapolated),
            self._basis(extrapolated, host_bound),
            is_bound,
        )

    def _scale(self, extrapolated: float) -> ExpectedScale:
        judged = [group.as_class for group in self.groups]
        return self.model.expected(traits_of(self.kind), judged, extrapolated)

    @property
    def _least_width(self) -> float:
        """What nine in ten runs like it were off by; without any, what else is known.

        That is what the profile states of its fit, with a split of matrices at least the errors of
        the most similar runs, and of a doubtful profile twice these errors: an assumption.
        """
        if like := self._like:
            return _spread_of(like).width
        stated = math.log1p(self.kind.stated_error)
        if self.kind.splits_matrices and self.groups:
            stated = max(stated, _spread_of(self._nearest(self.groups)).width)
        if not self.kind.is_doubtful:
            return stated
        others = [group for group in self.groups if group.cluster == self.kind.cluster]
        if not others or self.kind.is_changed:
            return max(stated, _OF_DOUBT)
        return max(stated, 2 * _spread_of(self._nearest(others)).width)

    @property
    def _like(self) -> list[JudgedRuns]:
        """The judged runs of the kind."""
        return [group for group in self.groups if not self._differences(group)]

    def _differences(self, group: JudgedRuns) -> tuple[Respect, ...]:
        return differences(self.kind, group.runs, group.cluster, mixed=group.is_mixed)

    def _nearest(self, groups: Sequence[JudgedRuns]) -> list[JudgedRuns]:
        """Return the runs that differ from the kind in the fewest respects."""
        fewest = min(len(self._differences(group)) for group in groups)
        return [group for group in groups if len(self._differences(group)) == fewest]

    def _least_difference(self, extrapolated: float) -> float:
        """Return what 90 % of pairs' errors are below; without pairs, as if the pairs were runs."""
        pairs = [group.runs.pairs for group in self._like if group.runs.pairs]
        return max((pair.p90 for pair in pairs), default=math.expm1(self.width(extrapolated)))

    def _basis(self, extrapolated: float, host_bound: float) -> str:
        """Say in plain words which runs are most like the scenario."""
        if self.kind.is_lower_bound:
            return "no run is faster, as the profile has the best possible values"
        if not self.groups:
            return "no run was compared"
        if self.width(extrapolated, host_bound=host_bound) > self.width(extrapolated):
            return "from 161 tests of Megatron-Core that wait for their hosts"
        if like := self._like:
            number = counted(sum(group.runs.num_runs for group in like), "measured run")
            also = f"; {extrapolated:.0%} of kernel time is extrapolated"
            return f"from {number} like this one{also * (extrapolated >= 0.005)}"
        group = max(self._nearest(self.groups), key=lambda each: each.runs.num_runs)
        *names, last = (respect.name for respect in self._differences(group))
        differ = f"{', '.join(names)} and {last}" if names else last
        doubt = "; the profile is doubtful" * self.kind.is_doubtful
        number = counted(group.runs.num_runs, "measured run")
        on = Path(group.cluster).stem
        return f"none like this one was compared; {number} on {on} differ in {differ}{doubt}"


def _spread_of(groups: Sequence[JudgedRuns]) -> Spread:
    """Return the spread of all runs, by the mean of their |log ratio|."""
    ratios = [ratio for group in groups for ratio in group.runs.log_ratios]
    return Spread.of_mean(math.fsum(map(abs, ratios)) / len(ratios))


def errors_of(kind: RunKind) -> ExpectedErrors:
    """Return how far off predictions of a kind are expected to be.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    return ExpectedErrors(kind, judged_runs([kind.cluster]), error_model())
