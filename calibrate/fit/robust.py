"""Robust regularised least squares of logarithms: a fit that outliers do not move.

Logarithms of predicted / measured times have Student's t distribution with four degrees of freedom,
whose tails are so heavy that a run that is ten times as far off as the others hardly counts. Each
parameter has a normal prior around 0. Parameters and the scale of the errors are those of the
highest posterior density (iteratively reweighted Gauss-Newton steps; Lange, Little and Taylor 1989,
"Robust statistical modeling using the t distribution").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

Floats = NDArray[np.float64]
_DEGREES = 4.0
_INFORMATION = (_DEGREES + 1) / (_DEGREES + 3)
"""Fisher information of an observation of Student's distribution, relative to the normal one's."""
_STEP = 0.02
"""Change of a parameter, in logarithms, from which its derivative follows."""
_MOST_STEPS, _MOST_HALVINGS = 15, 4
_SMALL = 0.1
"""Change in deviations of the posterior after which a search ends."""
_TRIALS = -1.5, 1.5
"""Places in prior widths from which a search may start: far away, a parameter may have no effect
near 0."""
_WEIGHT_OF_SCALE = 4.0
"""Number of observations that the expected scale of the errors counts as."""


@dataclass(frozen=True, slots=True)
class FitProblem:
    """Parameters to be fitted to logarithms of predicted / measured.

    Args:
        log_ratios: returns the logarithms, one for each observation, at values of the parameters;
            shapes (parameters,) and (observations,).
        widths: standard deviations of the priors; shape (parameters,).
        lower: smallest legal values.
        upper: largest legal values.
        scale: expected standard deviation of the logarithms.
    """

    log_ratios: Callable[[Floats], Floats]
    widths: Floats
    lower: Floats
    upper: Floats
    scale: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Fitted parameters.

    Args:
        values: the values; shape (parameters,).
        deviations: standard deviations of their posterior, by linearisation.
        scale: scale of the errors.
        weights: how much each observation counts, from 0 to 1.25; shape (observations,).
        ratios: the logarithms at the values; shape (observations,).
        slopes: their derivatives by the parameters; shape (observations, parameters).
    """

    values: Floats
    deviations: Floats
    scale: float
    weights: Floats
    ratios: Floats
    slopes: Floats

    def near(self, values: Floats, numbers: Sequence[int]) -> Floats:
        """Return the logarithms of some observations at other values, by linearisation."""
        kept = np.array(numbers)
        ratios: Floats = self.ratios[kept] + self.slopes[kept] @ (values - self.values)
        return ratios


def estimate(problem: FitProblem, start: Floats | None = None) -> Estimate:
    """Return the parameters of the highest posterior density.

    Args:
        problem: what is fitted.
        start: values near the result; by default several are tried.
    """
    values = _start(problem) if start is None else start
    ratios = problem.log_ratios(values)
    scale = _scale(ratios, problem.scale)
    slopes = _slopes(problem, values, ratios)
    for _ in range(_MOST_STEPS):
        step = _step(problem, values, ratios, slopes, scale)
        before = _cost(problem, values, ratios, scale)
        for _ in range(_MOST_HALVINGS):
            ratios_there = problem.log_ratios(values + step)
            if _cost(problem, values + step, ratios_there, scale) <= before:
                break
            step = step / 2
        else:
            break
        values, ratios = values + step, ratios_there
        scale = _scale(ratios, problem.scale)
        slopes = _slopes(problem, values, ratios)
        if np.max(np.abs(step) / _deviations(problem, slopes, scale)) < _SMALL:
            break
    deviations = _deviations(problem, slopes, scale)
    # The fit brings the errors down to fewer degrees of freedom than there are observations.
    num_fitted = np.sum(1 - (deviations / problem.widths) ** 2)
    num_observations = _WEIGHT_OF_SCALE + len(ratios)
    scale *= math.sqrt(num_observations / (num_observations - num_fitted))
    deviations = _deviations(problem, slopes, scale)
    return Estimate(values, deviations, scale, _weights(ratios, scale), ratios, slopes)


def _start(problem: FitProblem) -> Floats:
    """Return the best of the values that change one parameter, from which a search begins."""
    starts = [np.zeros_like(problem.widths)]
    for place, width in enumerate(problem.widths):
        for trial in _TRIALS:
            start = np.zeros_like(problem.widths)
            start[place] = np.clip(trial * width, problem.lower[place], problem.upper[place])
            starts.append(start)

    def cost(start: Floats) -> float:
        ratios = problem.log_ratios(start)
        scale = _scale(ratios, problem.scale)
        return _cost(problem, start, ratios, scale) + len(ratios) * math.log(scale)

    return min(starts, key=cost)


def _weights(ratios: Floats, scale: float) -> Floats:
    weights: Floats = (_DEGREES + 1) / (_DEGREES + (ratios / scale) ** 2)
    return weights


def _scale(ratios: Floats, expected: float) -> float:
    """Return the likeliest scale of errors, by expectation-maximisation."""
    square = float(np.median(ratios**2)) + expected**2
    for _ in range(60):
        total = float(np.sum(_weights(ratios, math.sqrt(square)) * ratios**2))
        square = (_WEIGHT_OF_SCALE * expected**2 + total) / (_WEIGHT_OF_SCALE + len(ratios))
    return math.sqrt(square)


def _cost(problem: FitProblem, values: Floats, ratios: Floats, scale: float) -> float:
    """Return the negative logarithm of the posterior density at a scale of the errors."""
    tails = np.log1p((ratios / scale) ** 2 / _DEGREES)
    prior = np.sum((values / problem.widths) ** 2)
    return float((_DEGREES + 1) * np.sum(tails) + prior) / 2


def _slopes(problem: FitProblem, values: Floats, ratios: Floats) -> Floats:
    """Return the derivatives of the logarithms; shape (observations, parameters)."""
    slopes = np.empty((len(ratios), len(values)))
    for place, value in enumerate(values):
        step = _STEP if value + _STEP <= problem.upper[place] else -_STEP
        moved = values.copy()
        moved[place] += step
        slopes[:, place] = (problem.log_ratios(moved) - ratios) / step
    return slopes


def _deviations(problem: FitProblem, slopes: Floats, scale: float) -> Floats:
    """Return the standard deviations of the parameters, by linearisation."""
    information = slopes.T @ slopes * (_INFORMATION / scale**2) + np.diag(problem.widths**-2.0)
    deviations: Floats = np.sqrt(np.diag(np.linalg.inv(information)))
    return deviations


def _step(
    problem: FitProblem, values: Floats, ratios: Floats, slopes: Floats, scale: float
) -> Floats:
    """Return the change to the best legal values of the linearised, reweighted problem."""
    roots = np.sqrt(_weights(ratios, scale)) / scale
    matrix = np.vstack([slopes * roots[:, None], np.diag(1 / problem.widths)])
    target = -np.concatenate([ratios * roots, values / problem.widths])
    room = 1e-12  # lsq_linear wants bounds apart
    bounds = problem.lower - values - room, problem.upper - values + room
    step: Floats = lsq_linear(matrix, target, bounds).x
    return np.clip(values + step, problem.lower, problem.upper) - values
