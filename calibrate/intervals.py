"""Fit the model of errors to all judged runs, and show how its intervals hold for those left out.

`python -m calibrate.intervals > hw_profiles/validated_on/error_model.yaml` writes the parameters.

The deviations have the largest likelihood of the classes' scales, whose logarithms are taken to be
normal, times weak priors: with some thirty classes, a deviation that they hardly determine would
else become zero or large.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from simtrain.hardware.interval import RESPECTS, ErrorModel, JudgedRuns, Traits, judged_runs

_FIELDS = ("machine", "software", "data_type", "model", "runs")
_USUAL_DEVIATION, _SPREAD_OF_DEVIATIONS = 0.3, 1.0
"""Median of the prior of each deviation, and the deviation of its logarithm."""
_USUAL_SLOPE = 0.3
"""Deviation of the prior of `extrapolated`, which is above 0."""
_INDEPENDENT_RUNS = 20.0
"""An assumption: the classes are too few to tell how alike runs of one publication are."""
_MOST_RUNS = 50
"""Weight of a class in checks: one of 365 runs would decide them alone."""


def fit_error_model(judged: Sequence[JudgedRuns]) -> ErrorModel:
    """Return the parameters that classes of judged runs make most likely.

    Args:
        judged: all classes, with the errors of their runs.
    """
    scales = np.array([each.log_scale for each in judged])
    traits = [each.traits for each in judged]
    shares = np.array([each.runs.extrapolated for each in judged])
    runs = sum(each.runs.num_runs for each in judged)
    said = f"{runs:,} runs of {len(judged)} classes in validated_on; python -m calibrate.intervals"

    def model(values: np.ndarray) -> ErrorModel:
        typical, slope, *deviations = np.exp(values).tolist()
        return ErrorModel(
            version=1,
            typical_error=typical,
            extrapolated=slope,
            **dict(zip(_FIELDS, deviations, strict=True)),
            independent_runs=_INDEPENDENT_RUNS,
            fitted_on=said,
        )

    def surprise(values: np.ndarray) -> float:
        candidate = model(values)
        covariances = candidate.likeness(traits, traits)
        covariances += np.diag([candidate.own_variance(each.runs.num_runs) for each in judged])
        distances = scales - math.log(candidate.typical_error) - candidate.extrapolated * shares
        root = np.linalg.cholesky(covariances)
        whitened: np.ndarray = np.linalg.solve(root, distances)
        likelihood = 0.5 * float(whitened @ whitened) + float(np.log(np.diag(root)).sum())
        deviations = (values[2:] - math.log(_USUAL_DEVIATION)) / _SPREAD_OF_DEVIATIONS
        slope = candidate.extrapolated / _USUAL_SLOPE
        return likelihood + 0.5 * float(deviations @ deviations) + 0.5 * slope**2

    start = np.log([0.1, _USUAL_SLOPE, *[_USUAL_DEVIATION] * len(_FIELDS)])
    options = {"maxiter": 5000, "xatol": 1e-4, "fatol": 1e-6}
    best = minimize(surprise, start, method="Nelder-Mead", options=options)
    return model(np.log(np.exp(best.x).clip(min=1e-3)))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How 90 % intervals hold for runs of which the model knew nothing.

    They are the model's alone: what `ExpectedErrors` adds only widens them, up to a factor of two.

    Args:
        what: what was left out at a time.
        errors: |ln(measured / predicted)| of each run.
        widths: the |ln| up to which its interval reached.
        weights: of each run; classes of many runs count no more than `_MOST_RUNS`.
    """

    what: str
    errors: np.ndarray
    widths: np.ndarray
    weights: np.ndarray

    @property
    def held(self) -> float:
        return float(np.average(self.errors <= self.widths, weights=self.weights))

    @property
    def held_by_third(self) -> tuple[float, float, float]:
        """The same for the third with the narrowest intervals, the middle and the widest."""
        order = np.argsort(self.widths, kind="stable")
        ends = np.cumsum(self.weights[order]) / self.weights.sum()
        thirds = (order[(ends > low) & (ends <= low + 1 / 3 + 1e-9)] for low in (0, 1 / 3, 2 / 3))
        inside = (self.errors <= self.widths).astype(float)
        low, middle, high = (
            float(inside[part] @ self.weights[part] / self.weights[part].sum()) for part in thirds
        )
        return low, middle, high

    @property
    def full_widths(self) -> np.ndarray:
        return np.asarray(2 * np.sinh(self.widths))

    @property
    def median_width(self) -> float:
        widths = self.full_widths
        order = np.argsort(widths)
        ends = np.cumsum(self.weights[order]) / self.weights.sum()
        return float(widths[order[int(np.searchsorted(ends, 0.5))]])


def error_model_text(model: ErrorModel) -> str:
    """Return the parameters as `error_model.yaml`."""
    lines = (f"{name}: {_text(value)}" for name, value in model)
    return "\n".join(["# Parameters of simtrain/hardware/interval.py.", *lines, ""])


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value)


def left_out(model: ErrorModel, judged: Sequence[JudgedRuns]) -> list[LeftOut]:
    """Return how intervals hold for each class, machine, stack, data type and kind of model.

    The model keeps its deviations, and knows none of the runs that agree in what is left out.
    """

    def with_same(respects: Sequence[str]) -> Callable[[Traits, Traits], bool]:
        return lambda some, other: all(some[each] == other[each] for each in respects)

    ways = {"class": with_same(RESPECTS)} | {each: with_same([each]) for each in RESPECTS}
    return [_left_out(model, judged, what, same) for what, same in ways.items()]


def _left_out(
    model: ErrorModel,
    judged: Sequence[JudgedRuns],
    what: str,
    same: Callable[[Traits, Traits], bool],
) -> LeftOut:
    errors: list[float] = []
    widths: list[float] = []
    weights: list[float] = []
    for each in judged:
        number = each.runs.num_runs
        known = [other for other in judged if not same(each.traits, other.traits)]
        width = model.expected(each.traits, known, each.runs.extrapolated).width()
        errors += map(abs, each.runs.log_ratios)
        widths += [width] * number
        weights += [min(1.0, _MOST_RUNS / number)] * number
    return LeftOut(what, np.array(errors), np.array(widths), np.array(weights))


def main() -> None:
    """Print the parameters; on stderr, how their intervals hold for runs that are left out."""
    judged = judged_runs()
    model = fit_error_model(judged)
    print(error_model_text(model), end="")
    for each in left_out(model, judged):
        thirds = ", ".join(f"{share:.0%}" for share in each.held_by_third)
        print(
            f"each {each.what} left out: {each.held:.1%} of runs inside (by third of widths: "
            f"{thirds}), median width {each.median_width:.0%}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
