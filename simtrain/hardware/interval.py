"""Where the measured time of a prediction lies: a pooled, hierarchical model of errors.

The mean |ln(predicted / measured)| of a class of runs, its scale, is modelled by its logarithm:

    ln scale = ln typical_error + extrapolated x share of time that is extrapolated
               + machine + software + data type + kind of model + class

Each term in the second line is normal around 0 with the deviation that `error_model.yaml` has, and
classes that agree in a respect share its term; the last one is that of each publication's runs. The
classes that were judged then say what to expect of any kind: one that was judged often has the
scale of its runs; one that nothing is like has `typical_error`, with all deviations; those between
borrow from the classes that they share terms with (best linear unbiased prediction; Robinson 1991,
"That BLUP is a good thing"). The errors of one class have Laplace's form (`Spread`), and the
interval averages over what its scale may be.

`python -m calibrate.intervals` fits the deviations to all files of `hw_profiles/validated_on`, and
shows how intervals hold for classes, machines and stacks that were left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from simtrain.base.entry import NonNegative, Positive, Strict, Text
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.resources import error_model_file, list_profiles
from simtrain.base.spread import Spread
from simtrain.base.strict_yaml import load_document, validate
from simtrain.base.values import dataclass
from simtrain.hardware.evidence import (
    SIXTEEN_BITS,
    DataType,
    MeasuredRuns,
    RunKind,
    differences,
    validated_on,
)
from simtrain.scenario.software import family_of
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
        return f"The measured time is {self.words}; {self.basis}."

    def has(self, time_s: float) -> bool:
        return self.p5_s <= time_s <= self.p95_s

    def has_in_half(self, time_s: float) -> bool:
        return self.p25_s <= time_s <= self.p75_s


_OF_DOUBT = math.log(1.6)
"""Half the log width of the 90 % interval on a machine whose profile rests on datasheets or on
contradicting sources, and of which no run was judged: an assumption, not an estimate."""

_OF_HOST = 0.91
"""|ln(measured / predicted)| over the host-bound share that nine in ten runs stay below.

Of 161 host-bound tests of Megatron-Core that no number was fitted to (simtrain show model).
"""
_WIDEST = math.log(2)
"""No interval reaches farther: a time that is off by more than a factor of two is another one."""

RESPECTS = ("machine", "software", "data type", "model")
"""The respects in which classes of runs differ."""
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_LEAST_SCALE = 0.005
"""No class is better than half a percent on average: the same iteration differs by that from run to
run."""


class ErrorModel(Strict):
    """The parameters of the model, as `error_model.yaml` has them.

    Args:
        version: version of this schema.
        typical_error: the scale of a class of which nothing is known, if nothing is extrapolated.
        extrapolated: by how much ln scale grows if all kernel time is of shapes outside the range
            that the profile was fitted on.
        machine, software, data_type, model, runs: deviations of ln scale between machines, software
            stacks, data types, kinds of model, and runs of different publications that agree in all
            of these.
        independent_runs: runs of one publication are alike: any number of them says no more about
            their scale than this number of independent runs.
        fitted_on: what the parameters follow from.
    """

    version: Literal[1]
    typical_error: Positive
    extrapolated: NonNegative
    machine: NonNegative
    software: NonNegative
    data_type: NonNegative
    model: NonNegative
    runs: NonNegative
    independent_runs: Positive
    fitted_on: Text

    @property
    def deviations(self) -> tuple[float, ...]:
        return self.machine, self.software, self.data_type, self.model

    def likeness(self, some: Sequence[Traits], others: Sequence[Traits]) -> np.ndarray:
        """Return what ln scale of classes has in common, as covariances: [some, others]."""
        covariances = np.zeros((len(some), len(others)))
        for respect, deviation in zip(RESPECTS, self.deviations, strict=True):
            column = np.array([traits[respect] for traits in some])
            row = np.array([traits[respect] for traits in others])
            covariances += deviation**2 * (column[:, None] == row[None, :])
        return covariances

    def _mean(self, extrapolated: float) -> float:
        return math.log(self.typical_error) + self.extrapolated * extrapolated

    def own_variance(self, num_runs: int) -> float:
        """Return the variance of the ln scale that so many runs of a class show, of its own.

        That of ln of the mean of n exponentially distributed amounts is trigamma(n).
        """
        trigamma = 1 / num_runs + 1 / (2 * num_runs**2) + 1 / (6 * num_runs**3)
        return self.runs**2 + trigamma + 1 / self.independent_runs

    def expected(
        self, traits: Traits, judged: Sequence[JudgedRuns], extrapolated: float = 0.0
    ) -> ExpectedScale:
        """Return the scale to expect of a class from the judged ones.

        `extrapolated` is the share of its kernel time that is extrapolated.
        """
        prior = float(self.likeness([traits], [traits])[0, 0]) + self.runs**2
        mean = self._mean(extrapolated)
        if not judged:
            return ExpectedScale(mean, prior)
        known = [each.traits for each in judged]
        covariances = self.likeness(known, known)
        covariances += np.diag([self.own_variance(each.runs.num_runs) for each in judged])
        shared = self.likeness([traits], known)[0]
        weights = np.linalg.solve(covariances, shared)
        means = [self._mean(each.runs.extrapolated) for each in judged]
        distances = np.array([each.log_scale for each in judged]) - means
        return ExpectedScale(mean + float(weights @ distances), float(prior - weights @ shared))


@dataclass(frozen=True, slots=True)
class ExpectedScale:
    """The scale of a class: ln scale is normal around `mean` with `variance`."""

    mean: float
    variance: float

    def width(self, share: float = 0.9) -> float:
        """Return the |log ratio| that this share of the class's runs stays within."""
        scales = np.exp(self.mean + math.sqrt(max(self.variance, 0.0)) * _POINTS)
        low, high = 0.0, -math.log(1 - share) * float(scales.max())
        for _ in range(60):
            middle = (low + high) / 2
            inside = 1 - float(_WEIGHTS @ np.exp(-middle / scales))
            low, high = (middle, high) if inside < share else (low, middle)
        return high


Traits = Mapping[str, str]
"""What a class of runs is in each respect."""


@dataclass(frozen=True, slots=True)
class JudgedRuns:
    """Measured runs of one class with which predictions were compared.

    `is_mixed` if they are of several frameworks, which are no evidence for any stack.
    """

    runs: MeasuredRuns
    cluster: str
    is_mixed: bool = False

    @property
    def traits(self) -> Traits:
        runs = self.runs
        software = f"others on {self.cluster}" if self.is_mixed else family_of(runs.software)
        return _traits(self.cluster, software, runs.data_types, runs.has_experts, runs.is_hybrid)

    @property
    def log_scale(self) -> float:
        """ln of the mean |log ratio|, without the bias of few runs (ln n - digamma(n))."""
        number, mean = self.runs.num_runs, _mean_amount([self])
        return math.log(max(mean, _LEAST_SCALE)) + 1 / (2 * number) + 1 / (12 * number**2)


def _mean_amount(groups: Sequence[JudgedRuns]) -> float:
    ratios = [ratio for group in groups for ratio in group.runs.log_ratios]
    return math.fsum(map(abs, ratios)) / len(ratios)


def traits_of(kind: RunKind) -> Traits:
    """Return what runs of a kind are in each respect; a changed profile is another machine."""
    machine = f"{kind.cluster}, changed" if kind.is_changed else kind.cluster
    family, types = family_of(kind.software), [kind.data_type]
    return _traits(machine, family, types, kind.has_experts, kind.is_hybrid)


def _traits(
    machine: str, software: str, types: Iterable[DataType], has_experts: bool, is_hybrid: bool
) -> Traits:
    # 16-bit types are as fast as each other.
    names = {"16 bits" if each in SIXTEEN_BITS else each for each in types}
    layers = "hybrid" if is_hybrid else "transformer"
    model = f"{layers} with experts" if has_experts else f"dense {layers}"
    values = (machine, software, " and ".join(sorted(names)), model)
    return dict(zip(RESPECTS, values, strict=True))


def judged_runs(clusters: Iterable[str] = ()) -> list[JudgedRuns]:
    """Return all classes of measured runs on some profiles and on the shipped ones.

    Runs that the files of several profiles have, such as a base and what was fitted near it, count
    once, on the first.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    names = dict.fromkeys((*clusters, *list_profiles()))
    groups = [runs for name in names for runs in _judged_on(name)]
    first = {(each.runs.source, *each.runs.errors): each for each in reversed(groups)}
    return [*reversed(first.values())]


def _judged_on(cluster: str) -> Iterator[JudgedRuns]:
    if errors := validated_on(cluster):
        yield from (JudgedRuns(runs, cluster) for runs in errors.measured_runs)
        if errors.other_software:
            yield JudgedRuns(errors.other_software, cluster, is_mixed=True)


def error_model() -> ErrorModel:
    """Load the shipped parameters."""
    return read_error_model(error_model_file())


@functools.lru_cache(maxsize=4)
def read_error_model(file: Path) -> ErrorModel:
    """Load parameters.

    Raises:
        InputError: the file is bad.
    """
    document = load_document(file)
    return validate(ErrorModel, document.data, document.positions)


@dataclass(frozen=True, slots=True)
class ExpectedErrors:
    """How far off predictions of a kind are expected to be; `groups` has all judged runs."""

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
        scale = self.model.expected(traits_of(self.kind), self.groups, extrapolated)
        width = max(scale.width(share), of_share * least)
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

    @property
    def _least_width(self) -> float:
        """What nine in ten runs like it were off by; without any, what else is known.

        That is what the profile states of its fit, and of a doubtful profile twice the errors of
        the most similar runs: an assumption.
        """
        if like := self._like:
            return _width_of(like)
        stated = math.log1p(self.kind.stated_error)
        if not self.kind.is_doubtful:
            return stated
        others = [group for group in self.groups if group.cluster == self.kind.cluster]
        if not others or self.kind.is_changed:
            return max(stated, _OF_DOUBT)
        return max(stated, 2 * _width_of(self._nearest(others)))

    @property
    def _like(self) -> list[JudgedRuns]:
        return [group for group in self.groups if not self._differences(group)]

    def _differences(self, group: JudgedRuns) -> list[str]:
        return differences(self.kind, group.runs, group.cluster, mixed=group.is_mixed)

    def _nearest(self, groups: Sequence[JudgedRuns]) -> list[JudgedRuns]:
        fewest = min(len(self._differences(group)) for group in groups)
        return [group for group in groups if len(self._differences(group)) == fewest]

    def _least_difference(self, extrapolated: float) -> float:
        """Return what 90 % of pairs' errors are below; without pairs, as if the pairs were runs."""
        pairs = [group.runs.pairs for group in self._like if group.runs.pairs]
        return max((pair.p90 for pair in pairs), default=math.expm1(self.width(extrapolated)))

    def _basis(self, extrapolated: float, host_bound: float) -> str:
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
        *names, last = self._differences(group)
        differ = f"{', '.join(names)} and {last}" if names else last
        doubt = "; the profile is doubtful" * self.kind.is_doubtful
        number = counted(group.runs.num_runs, "measured run")
        on = Path(group.cluster).stem
        return f"none like this one was compared; {number} on {on} differ in {differ}{doubt}"


def _width_of(groups: Sequence[JudgedRuns]) -> float:
    return Spread.of_mean(_mean_amount(groups)).width


def errors_of(kind: RunKind) -> ExpectedErrors:
    """Return how far off predictions of a kind are expected to be.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    return ExpectedErrors(kind, judged_runs([kind.cluster]), error_model())
