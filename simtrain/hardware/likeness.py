"""How far off predictions are: what judged runs say of a class, and one's own runs of their like.

The error of a run, ln(measured / predicted), is one draw of a Student's t process (Shah et al.
2014, "Student-t Processes as Alternatives to Gaussian Processes"):

    error = waiting x h + exp(waiting_spread x h) (centre + spread x z)

`h` is the share of time in which GPUs wait for their host, and `z` has the form of Student's t.
Centre and spread are those of a class. Each judged class counts by its number of runs, times a
share for each respect in which it differs.

Runs of one cluster and stack are alike: the correlation of their `z` falls with their distance. So
one's own runs move the centre of a run like them and narrow its spread, by the best linear
prediction; a run that is like none of them stays as it was.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from simtrain.base.entry import Count, NonNegative, Positive, Strict, Text
from simtrain.base.resources import error_model_file
from simtrain.base.strict_yaml import load_document, validate
from simtrain.base.values import dataclass
from simtrain.hardware.evidence import (
    RESPECTS,
    MeasuredRuns,
    RunKind,
    Traits,
    traits_of,
    traits_of_runs,
    validated_on,
)
from simtrain.scenario import Scenario
from simtrain.scenario.software import family_of

Share = Annotated[float, Field(ge=0, le=1)]
WIDEST = math.log(2)
"""No error counts as more: a time that is off by more than a factor of two is another one."""
_SHARED_IN_CLASS = 0.4  # correlation of two runs of a judged class, on average
RunShape = tuple[float, ...]
"""What tells whether runs of one cluster and stack are off by the same (`shape_of`)."""
_UNITS = np.array([0.2, 0.15, 4.0, *[1.0] * 8])
"""Differences of a shape's parts that count as much as each other, on `_OF_RUNS`' rows."""


def shape_of(scenario: Scenario, host_bound: float, mfu: float) -> RunShape:
    """Return the shape of a run.

    Its parts are the share of time in which GPUs wait for hosts, MFU, and log2 of GPUs, of width,
    layers, sequence length, tokens of a rank's microbatch, and of ranks.
    """
    model, split = scenario.model, scenario.parallelism
    tokens = scenario.batch.micro * model.seq_length / (split.tensor * split.context)
    sizes = (scenario.num_gpus, model.hidden_size, model.num_layers, model.seq_length, tokens)
    ranks = (split.tensor, split.pipeline, split.context, split.expert)
    return (host_bound, mfu, *map(math.log2, (*sizes, *ranks)))


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run of one's own: ln(measured / simulated) of its time and of its peak, None if unknown."""

    machine: str
    software: str
    shape: RunShape
    log_ratio: float | None
    peak_log_ratio: float | None = None

    def is_of(self, kind: RunKind) -> bool:
        traits = traits_of(kind)
        return (self.machine, family_of(self.software)) == (traits["machine"], traits["software"])


def own_runs(runs: MeasuredRuns, cluster: str) -> list[OwnRun]:
    """Return measured runs whose shapes a profile's file of errors has."""
    pairs = zip(runs.shapes or (), runs.log_ratios, strict=False)
    return [OwnRun(cluster, runs.software, tuple(shape), -ratio) for shape, ratio in pairs]


class JudgedClass(Strict):
    """What predictions of the runs of one class were off by.

    Args:
        machine, software, data_type, model: its traits.
        source: the publication.
        runs: number of runs.
        mean, square: means of ln(measured / predicted) and of its square.
        is_blind: whether nothing was chosen after looking at the runs.
    """

    machine: Text
    software: Text
    data_type: Text
    model: Text
    source: Text
    runs: Count
    mean: float
    square: NonNegative
    is_blind: bool = False

    @property
    def errors(self) -> tuple[object, ...]:
        """What is the same if two files have the same runs."""
        return self.source, self.runs, self.mean, self.square

    def differences(self, traits: Traits) -> list[str]:
        """Return the respects in which the runs differ from others."""
        return [respect for respect in RESPECTS if traits[respect] != getattr(self, respect)]

    @classmethod
    def of(cls, runs: MeasuredRuns, cluster: str) -> JudgedClass:
        """Summarize runs on a machine."""
        logs = np.clip(np.negative(runs.log_ratios), -WIDEST, WIDEST)
        return cls(
            **traits_of_runs(runs, cluster),
            source=runs.source.partition(",")[0],
            runs=runs.num_runs,
            mean=round(float(logs.mean()), 4),
            square=round(float((logs**2).mean()), 6),
            is_blind=runs.seen == "blind",
        )


def judged_on(cluster: str) -> list[tuple[JudgedClass, MeasuredRuns]]:
    """Return the classes of runs that judged a profile.

    Raises:
        InputError: there is no such profile, or its file of errors is bad.
    """
    if (errors := validated_on(cluster)) is None:
        return []
    return [(JudgedClass.of(each, cluster), each) for each in errors.measured_runs]


@dataclass(frozen=True, slots=True)
class RunErrors:
    """The errors to expect: Student's t around `centre`, with `spread` and degrees of freedom.

    Args:
        likeness: share of the variance that one's own runs explain.
    """

    centre: float
    spread: float
    freedom: float
    likeness: float = 0.0

    def half_width(self, share: float) -> float:
        """Return the distance from the centre that a share of the runs stays within: 0.5 or 0.9.

        The quantile of Student's t by an expansion (Abramowitz and Stegun 26.7.5), within 1 %.
        """
        normal = {0.5: 0.6744897501960817, 0.9: 1.6448536269514715}[share]
        first, second = (normal**2 + 1) / 4, (5 * normal**4 + 16 * normal**2 + 3) / 96
        terms = (first, second / self.freedom, second / 3 / self.freedom**2)
        return self.spread * normal * (1 + math.fsum(terms) / self.freedom)


class ErrorModel(Strict):
    """The parameters of the model, as `error_model.yaml` has them.

    Args:
        version: version of this schema.
        centre, spread: those of a class of which nothing is known.
        centre_runs, spread_runs: the number of runs that these count as.
        machine, software, data_type, model: the share of a run that counts for a class that differs
            from its own in this respect.
        unseen: factor on the spread of runs that nobody looked at while the predictions were made.
        independent_runs: runs of one publication are alike: any number of them counts as at most
            this number.
        waiting, waiting_spread: by how much the error and the log of its spread grow if GPUs wait
            for their host all the time.
        distance: by how much the log of two runs' correlation falls with their distance.
        of_a_run: the share of the variance that a run shares with its own repetition alone.
        fitted_on: what the parameters follow from.
        classes: the judged classes.
    """

    version: int = Field(ge=2, le=2)
    centre: float
    centre_runs: Positive
    spread: Positive
    spread_runs: float = Field(ge=3)
    machine: Share
    software: Share
    data_type: Share
    model: Share
    unseen: float = Field(ge=1)
    independent_runs: Positive
    waiting: NonNegative
    waiting_spread: NonNegative
    distance: Positive
    of_a_run: Share
    fitted_on: Text
    classes: list[JudgedClass]

    def expected(self, traits: Traits, classes: Sequence[JudgedClass]) -> RunErrors:
        """Return the errors to expect of a class, of runs that do not wait for hosts."""
        numbers = collections.Counter[str]()
        for each in classes:
            numbers[each.source] += each.runs
        weights = [
            math.prod(float(getattr(self, respect)) for respect in each.differences(traits))
            * each.runs
            / (1 + numbers[each.source] / self.independent_runs)
            for each in classes
        ]
        runs, means = math.fsum(weights), [each.mean for each in classes]
        weighted = math.fsum(map(float.__mul__, weights, means))
        centre = (self.centre_runs * self.centre + weighted) / (self.centre_runs + runs)
        squares = (each.square - centre * (2 * each.mean - centre) for each in classes)
        known = math.fsum(weight * square for weight, square in zip(weights, squares, strict=True))
        freedom = self.spread_runs + runs
        variance = (self.spread_runs * self.spread**2 + known) / freedom
        # The centre itself is uncertain, too.
        variance *= self.unseen**2 * (1 + 1 / (self.centre_runs + runs))
        return RunErrors(centre, math.sqrt(variance), freedom)

    def given(self, errors: RunErrors, shape: RunShape, anchors: Sequence[OwnRun]) -> RunErrors:
        """Return the errors to expect of a run of a class, given runs of one's own."""
        if not anchors:
            return errors
        alike = self._correlations([shape, *(run.shape for run in anchors)])
        to_run, known = alike[0, 1:], np.array([self._own_error(errors, run) for run in anchors])
        weights = np.linalg.solve(alike[1:, 1:], np.column_stack((to_run, known)))
        likeness, moved = map(float, to_run @ weights)
        # How far off one's own runs are says as much of a run's spread as they are like it.
        freedom = errors.freedom + likeness * len(anchors)
        growth = (errors.freedom + likeness * float(known @ weights[:, 1])) / freedom
        spread = errors.spread * math.sqrt((1 - likeness) * growth)
        return RunErrors(errors.centre + errors.spread * moved, spread, freedom, likeness)

    def apart(self, errors: RunErrors, like: Sequence[JudgedClass]) -> float:
        """Return how far the judged runs of a class are apart, as a share of errors to expect."""
        freedom, squares = errors.freedom, errors.freedom * errors.spread**2
        for each in like:
            freedom += each.runs - 1
            squares += (each.runs - 1) * (each.square - each.mean**2) / (1 - _SHARED_IN_CLASS)
        of_class = RunErrors(0.0, math.sqrt(squares / freedom), freedom)
        return of_class.half_width(0.9) / errors.half_width(0.9)

    def shared(self, shapes: Sequence[RunShape], anchors: Sequence[OwnRun]) -> float:
        """Return the correlation of two runs' errors, given runs of one's own."""
        alike = self._correlations([*shapes, *(run.shape for run in anchors)])
        explained = alike[:2, 2:] @ np.linalg.solve(alike[2:, 2:], alike[2:, :2])
        (first, both), (_, second) = alike[:2, :2] - explained
        return float(both / math.sqrt(first * second))

    def _correlations(self, shapes: Sequence[RunShape]) -> np.ndarray:
        points = np.array(shapes) / _UNITS
        distances = np.abs(points[:, None] - points[None]).sum(axis=2)
        alike = (1 - self.of_a_run) * np.exp(-self.distance * distances)
        alike[np.diag_indices_from(alike)] = 1.0
        return np.asarray(alike)

    def _own_error(self, errors: RunErrors, run: OwnRun) -> float:
        """Return z of a run of one's own."""
        host_bound = run.shape[0]
        error = max(-WIDEST, min(run.log_ratio or 0.0, WIDEST)) - self.waiting * host_bound
        return (error / self.slowed(host_bound) - errors.centre) / errors.spread

    def slowed(self, host_bound: float) -> float:
        """Return the factor on the errors of runs that wait for hosts in a share of the time."""
        return math.exp(self.waiting_spread * host_bound)


@functools.lru_cache(maxsize=4)
def error_model(file: Path | None = None) -> ErrorModel:
    """Load parameters, by default the shipped ones.

    Raises:
        InputError: the file is bad.
    """
    document = load_document(file or error_model_file())
    return validate(ErrorModel, document.data, document.positions)
