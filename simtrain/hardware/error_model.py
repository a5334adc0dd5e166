"""How far off predictions of a kind are expected to be: a pooled, hierarchical model of errors.

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

`simtrain calibrate intervals` fits the deviations to all files of `hw_profiles/validated_on`, and
shows how intervals hold for classes, machines and stacks that were left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from simtrain.base.entry import NonNegative, Positive, Strict, Text
from simtrain.base.resources import error_model_file
from simtrain.base.strict_yaml import load_document, validate

MACHINE, SOFTWARE, DATA_TYPE, MODEL = RESPECTS = ("machine", "software", "data type", "model")
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
        """The deviations of the respects, in the order of `RESPECTS`."""
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
        """Return ln scale of a class of which nothing else is known."""
        return math.log(self.typical_error) + self.extrapolated * extrapolated

    def own_variance(self, num_runs: int) -> float:
        """Return the variance of the ln scale that so many runs of a class show, of its own.

        That of ln of the mean of n exponentially distributed amounts is trigamma(n).
        """
        trigamma = 1 / num_runs + 1 / (2 * num_runs**2) + 1 / (6 * num_runs**3)
        return self.runs**2 + trigamma + 1 / self.independent_runs

    def expected(
        self, traits: Traits, judged: Sequence[JudgedClass], extrapolated: float = 0.0
    ) -> ExpectedScale:
        """Return the scale to expect of a class, from the judged ones.

        Args:
            traits: what the class is in each respect.
            judged: classes that were compared with predictions.
            extrapolated: share of the kernel time that is extrapolated.
        """
        prior = float(self.likeness([traits], [traits])[0, 0]) + self.runs**2
        mean = self._mean(extrapolated)
        if not judged:
            return ExpectedScale(mean, prior)
        known = [each.traits for each in judged]
        covariances = self.likeness(known, known)
        covariances += np.diag([self.own_variance(each.num_runs) for each in judged])
        shared = self.likeness([traits], known)[0]
        weights = np.linalg.solve(covariances, shared)
        distances = np.array([each.log_scale - self._mean(each.extrapolated) for each in judged])
        return ExpectedScale(mean + float(weights @ distances), float(prior - weights @ shared))


Traits = Mapping[str, str]
"""What a class of runs is in each respect."""


@dataclass(frozen=True, slots=True)
class JudgedClass:
    """A class of runs that were compared with predictions.

    Args:
        traits: what it is in each respect.
        log_ratios: ln(predicted / measured) of each run.
        extrapolated: share of their kernel time that is extrapolated, on average.
    """

    traits: Traits
    log_ratios: Sequence[float]
    extrapolated: float = 0.0

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return len(self.log_ratios)

    @property
    def log_scale(self) -> float:
        """ln of the mean |log ratio|, without the bias of few runs (ln n - digamma(n))."""
        number = len(self.log_ratios)
        mean = math.fsum(map(abs, self.log_ratios)) / number
        return math.log(max(mean, _LEAST_SCALE)) + 1 / (2 * number) + 1 / (12 * number**2)


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
