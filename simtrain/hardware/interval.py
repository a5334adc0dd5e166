"""Where the measured time of a prediction lies: around it, as far off as `likeness` expects."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.spread import Spread
from simtrain.base.values import dataclass
from simtrain.hardware.evidence import RunKind, traits_of
from simtrain.hardware.likeness import (
    WIDEST,
    JudgedClass,
    OwnRun,
    RunShape,
    error_model,
    judged_on,
    own_runs,
)
from simtrain.units import counted, format_seconds


@dataclass(frozen=True, slots=True)
class Interval(PlainData):
    """Where the measured time lies: from p5_s to p95_s in 90 % of runs, p25_s to p75_s in 50 %.

    Args:
        p5_s, p25_s, expected_s, p75_s, p95_s: times. Half of the runs take longer than expected_s.
        within: the largest difference of the prediction and the 90 % interval's ends, as a share of
            the smaller one.
        basis: the runs that it follows from, as a clause.
        is_lower_bound: whether the prediction is a lower bound. The interval then begins with it,
            and its words do not name the other end.
    """

    json_fields: ClassVar = keys(
        """p5=p5_s p25=p25_s p50=expected_s p75=p75_s p95=p95_s within basis is_lower_bound"""
    )

    p5_s: float
    p25_s: float
    expected_s: float
    p75_s: float
    p95_s: float
    within: float
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
        return f"The measured time is {self.words}; {self.basis}."

    def has(self, time_s: float) -> bool:
        return self.p5_s <= time_s <= self.p95_s

    def has_in_half(self, time_s: float) -> bool:
        return self.p25_s <= time_s <= self.p75_s


_OF_DOUBT = math.log(1.6)
"""Half the least log width on a doubtful machine without judged runs: an assumption."""
_LEAST_LIKENESS = 0.05
"""Runs that explain less of the variance are not like a run."""
_HALF = 0.4
"""The log width of a 50 % interval over that of a 90 % one, of least and widest intervals."""


def interval_of(
    kind: RunKind,
    shape: RunShape,
    time_s: float,
    least_s: float = 0.0,
    anchors: Sequence[OwnRun] = (),
) -> Interval:
    """Return where the measured time lies, as far off as judged runs and one's own were.

    No end is farther than a factor of two from the centre; of a lower bound, that is an assumption.

    Args:
        least_s: no iteration is shorter (`least_time.least_seconds`).
        anchors: one's own runs. Those on another machine or stack do not count.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    model, traits, host_bound = error_model(), traits_of(kind), shape[0]
    classes, alike = _known(kind, anchors)
    like = [each for each in classes if not each.differences(traits)]
    errors = model.given(model.expected(traits, classes), shape, alike)
    is_judged = bool(alike) or any(each.machine == traits["machine"] for each in classes)
    stated = max(math.log1p(kind.stated_error), _OF_DOUBT * kind.is_doubtful)
    least, slowed = 0.0 if is_judged else stated, model.slowed(host_bound)
    whole = min(slowed * max(errors.half_width(0.9), least), WIDEST)
    half = min(slowed * max(errors.half_width(0.5), _HALF * least), _HALF * WIDEST)
    factor = math.exp(model.waiting * host_bound + slowed * errors.centre)
    longer, expected = _longer(factor), f"expect {format_seconds(factor * time_s)}"
    if errors.likeness >= _LEAST_LIKENESS:
        number = counted(len(alike), "run")
        basis = f"your runs like this one took {longer} ({number}): {expected}"
    elif like:
        number = counted(sum(each.runs for each in like), "measured run")
        basis = f"from {number} like this one, and others: {expected}, {longer}"
    else:
        number = f"{sum(each.runs for each in classes):,}"
        basis = f"none like this one was compared; from {number} others: {expected}, {longer}"
    if kind.is_lower_bound:
        factor, whole, half, least_s = 1.0, WIDEST, WIDEST * _HALF, time_s
        basis = "no run is faster, as the profile has the best possible values"
    expected_s, least_s = max(factor * time_s, least_s), min(least_s, time_s)
    p5_s, p25_s = (max(expected_s / math.exp(width), least_s) for width in (whole, half))
    p75_s, p95_s = (expected_s * math.exp(width) for width in (half, whole))
    within, ends = max(p95_s / time_s, time_s / p5_s) - 1, (p5_s, p25_s, expected_s, p75_s, p95_s)
    return Interval(*ends, within, basis, kind.is_lower_bound)


def _known(kind: RunKind, anchors: Sequence[OwnRun]) -> tuple[list[JudgedClass], list[OwnRun]]:
    """Return the judged classes, and one's own runs on the machine and stack of a kind."""
    classes, known = error_model().classes, [*anchors]
    if not any(each.machine == kind.cluster for each in classes):
        on_cluster = judged_on(kind.cluster)
        known += [run for _, runs in on_cluster for run in own_runs(runs, kind.cluster)]
        # What judged a base, and a profile that was fitted near it, counts once.
        ours = {each.errors: each for each, runs in on_cluster if not runs.shapes}
        classes = [*ours.values(), *(each for each in classes if each.errors not in ours)]
    return classes, [run for run in known if run.log_ratio is not None and run.is_of(kind)]


@dataclass(frozen=True, slots=True)
class RatioInterval(PlainData):
    """Where the ratio of two measured times lies: from p5 to p95 in 90 % of pairs."""

    json_fields: ClassVar = keys("p5 p50=expected p95")

    p5: float
    expected: float
    p95: float

    @property
    def can_be_told(self) -> bool:
        """Whether the interval is on one side of 1."""
        return self.p5 > 1 or self.p95 < 1

    @property
    def words(self) -> str:
        """The interval in words: "3.2 to 12 % less", "1.5 % less to 4.0 % more"."""
        signed = sorted((self.p5 - 1, self.p95 - 1), key=abs if self.can_be_told else None)
        ends = [f"{100 * abs(end):.{0 if abs(end) >= 0.095 else 1}f}" for end in signed]
        last = f"{ends[1]} % {'less' if self.p95 < 1 else 'more'}"
        return f"{ends[0]} {'' if self.can_be_told else '% less '}to {last}"


def ratio_interval(first: Interval, second: Interval, shared: tuple[float, float]) -> RatioInterval:
    """Return where the ratio of a second time to a first lies; `shared` is of `shared_errors`."""
    correlation, apart = shared
    a, b = (apart * math.log(each.p95_s / each.expected_s) for each in (first, second))
    width = math.sqrt(a**2 + b**2 - 2 * correlation * a * b)
    ratio = second.expected_s / first.expected_s
    return RatioInterval(ratio / math.exp(width), ratio, ratio * math.exp(width))


def shared_errors(
    kinds: Sequence[RunKind], shapes: Sequence[RunShape], anchors: Sequence[OwnRun] = ()
) -> tuple[float, float]:
    """Return the correlation of two runs' errors, and how far those of their class are apart.

    On different machines or stacks they share nothing.
    """
    first, second = map(traits_of, kinds)
    if (first["machine"], first["software"]) != (second["machine"], second["software"]):
        return 0.0, 1.0
    model, (classes, alike) = error_model(), _known(kinds[0], anchors)
    errors = model.expected(first, classes)
    like = [each for each in classes if first == second and not each.differences(first)]
    return model.shared(shapes, alike), model.apart(errors, like)


@dataclass(frozen=True, slots=True)
class PeakErrors(Spread):
    """How far measured peaks lie from simulated ones; `basis` says what one's own runs did.

    Without any, as 73 cases that Megatron-Core's tests record on H100s, without memory outside
    tensors: 5 % are simulated at least 7.2 % too low, and 5 % at least 6.2 % too high.
    """

    width: float = 0.075
    basis: str = ""


_OF_STACK, _OF_PEAK = 0.15, 0.06
"""Deviations of log peaks, between stacks and between runs of one (`simtrain show validation`)."""


def peak_errors(kind: RunKind, anchors: Sequence[OwnRun]) -> PeakErrors:
    """Return the errors of peaks to expect, given those of one's own runs.

    Peaks of a cluster and stack are off by a part that they share: the median of one's own, with
    the credibility of their number (Bühlmann and Gisler 2005, A Course in Credibility Theory).
    """
    peaks = [run.peak_log_ratio for run in anchors if run.is_of(kind)]
    if not (logs := [each for each in peaks if each is not None]):
        return PeakErrors()
    median, number = statistics.median(logs), counted(len(logs), "run")
    credibility = 1 / (1 + (_OF_PEAK / _OF_STACK) ** 2 / len(logs))
    deviation = math.hypot(_OF_STACK * math.sqrt(1 - credibility), _OF_PEAK)
    basis = f"your runs' peaks were {_longer(math.exp(median), 'larger smaller large')} ({number})"
    return PeakErrors(math.log(10) * deviation / math.sqrt(2), credibility * median, basis)


def _longer(factor: float, words: str = "longer shorter long") -> str:
    longer, shorter, long = words.split()
    percent = round(100 * (factor - 1))
    if not percent:
        return f"as {long} as simulated"
    return f"{abs(percent)} % {longer if percent > 0 else shorter}"
