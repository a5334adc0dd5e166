"""Fit the model of errors to all judged runs, and show how its intervals hold for those left out.

`python -m calibrate.intervals > hw_profiles/validated_on/error_model.yaml` writes the parameters
and the judged classes.

With these parameters, runs of each publication are most likely by what all others say (the
leave-one-out likelihood), times weak priors.
"""

from __future__ import annotations

import collections
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import t as student

from simtrain.base.resources import list_profiles
from simtrain.hardware.evidence import RESPECTS, MeasuredRuns
from simtrain.hardware.likeness import WIDEST, ErrorModel, JudgedClass, RunErrors, judged_on

_OF_RUNS = {
    **{"independent_runs": 4.0, "unseen": 1.28},
    **{"waiting": 0.21, "waiting_spread": 0.95},
    **{"distance": 0.15, "of_a_run": 0.08},
}
"""What only runs with their settings show, which files of errors do not have.

Chosen on 929 published runs of 17 sources, 239 of them tests of Megatron-Core that wait for hosts.
There, in sample, the nearest run of a source leaves 0.67 of the mean |error|, three 0.62.
`unseen` was fitted while 24 runs were blind: most were looked at since, and cannot say it again.
"""
_START = 0.03, math.log(5.0), math.log(0.1), 0.0
"""Centre, logs of `centre_runs`, `spread` and `spread_runs` - 3."""
_USUAL_SHARE = 0.5
_SPREADS = (0.1, 1.5, 1.0, 1.0, *[2.0] * len(RESPECTS))
"""Deviations of the priors: of the centre, of logarithms, of shares' logits."""
_MOST_RUNS = 30
"""Weight of a publication in the fit: one of 365 runs would decide it alone."""
_MOST_CHECKED = 50
"""Weight of a class in checks."""

Judged = Sequence[tuple[JudgedClass, MeasuredRuns]]


def judged_runs() -> Judged:
    """Return the classes of all shipped profiles."""
    return [each for cluster in list_profiles() for each in judged_on(cluster)]


def fit_error_model(judged: Judged) -> ErrorModel:
    """Return the parameters that judged runs make most likely."""
    classes, numbers = [each for each, _ in judged], collections.Counter[str]()
    for each in classes:
        numbers[each.source] += each.runs
    runs = f"{numbers.total():,} runs of {len(judged)} classes in validated_on"
    said = f"{runs}; python -m calibrate.intervals"

    def model(values: np.ndarray) -> ErrorModel:
        centre, centre_runs, spread, spread_runs, *shares = values
        return ErrorModel(
            version=2,
            centre=centre,
            centre_runs=math.exp(centre_runs),
            spread=math.exp(spread),
            spread_runs=3 + math.exp(spread_runs),
            **dict(zip(RESPECTS, expit(shares).tolist(), strict=True)),
            **_OF_RUNS,
            fitted_on=said,
            classes=classes,
        )

    def surprise(values: np.ndarray) -> float:
        candidate, likelihood = model(values), 0.0
        for of, runs in judged:
            errors = _expected(candidate, of, classes, "source")
            logs = np.clip(np.negative(runs.log_ratios), -WIDEST, WIDEST)
            z = (logs - errors.centre) / errors.spread
            of_runs = student.logpdf(z, errors.freedom) - math.log(errors.spread)
            likelihood += min(1.0, _MOST_RUNS / numbers[of.source]) * float(of_runs.sum())
        return 0.5 * float((((values - start) / _SPREADS) ** 2).sum()) - likelihood

    shares = [float(logit(_USUAL_SHARE))] * len(RESPECTS)
    start = np.array([*_START, *shares])
    return model(minimize(surprise, start, method="L-BFGS-B").x)


def _expected(
    model: ErrorModel, of: JudgedClass, classes: Sequence[JudgedClass], what: str
) -> RunErrors:
    """Return the errors to expect of a class by those that differ from it in some respect.

    Those of runs that were looked at are smaller.
    """
    others = [each for each in classes if getattr(each, what) != getattr(of, what)]
    errors = model.expected(of.model_dump(), others)
    return errors if of.is_blind else replace(errors, spread=errors.spread / model.unseen)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How intervals hold for runs of which the model knew nothing.

    They are the model's alone: what profiles say of themselves only widens them.

    Args:
        what: what was left out at a time.
        errors: |ln(measured / expected)| of each run.
        widths: the |ln| up to which its 90 % interval reached.
        half_widths: the same of its 50 % interval.
        weights: of each run; classes of many runs count no more than `_MOST_CHECKED`.
    """

    what: str
    errors: np.ndarray
    widths: np.ndarray
    half_widths: np.ndarray
    weights: np.ndarray

    @property
    def held(self) -> float:
        return self._inside(self.widths)

    @property
    def held_in_half(self) -> float:
        return self._inside(self.half_widths)

    @property
    def held_by_third(self) -> list[float]:
        """The same for the third with the narrowest intervals, the middle and the widest."""
        ends, order = self._ends
        parts = (order[(ends > low) & (ends <= low + 1 / 3 + 1e-9)] for low in (0, 1 / 3, 2 / 3))
        return [self._inside(self.widths, part) for part in parts]

    @property
    def full_widths(self) -> np.ndarray:
        return np.asarray(2 * np.sinh(self.widths))

    @property
    def median_width(self) -> float:
        ends, order = self._ends
        return float(self.full_widths[order[int(np.searchsorted(ends, 0.5))]])

    @property
    def figures(self) -> list[float]:
        """All shares, the median width and the largest."""
        largest = float(self.full_widths.max())
        shares = self.held, *self.held_by_third, self.held_in_half
        return [*shares, self.median_width, largest]

    @property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The shares of the weight up to each run, and the runs, by their widths."""
        order = np.argsort(self.widths, kind="stable")
        return np.cumsum(self.weights[order]) / self.weights.sum(), order

    def _inside(self, widths: np.ndarray, part: np.ndarray | slice = slice(None)) -> float:
        return float(np.average((self.errors <= widths)[part], weights=self.weights[part]))


def error_model_text(model: ErrorModel) -> str:
    """Return the parameters as `error_model.yaml`."""
    lines = [f"{name}: {_text(value)}" for name, value in model if name != "classes"]
    classes = (json.dumps(each.model_dump(exclude_none=True)) for each in model.classes)
    rows = ["classes:", *(f"  - {each}" for each in classes)]
    return "\n".join(["# Parameters of simtrain/hardware/likeness.py.", *lines, *rows, ""])


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value)


def left_out(model: ErrorModel, judged: Judged) -> list[LeftOut]:
    """Return how intervals hold for each publication, machine, stack, data type, kind of model.

    The model keeps its parameters, and knows none of the runs that agree in what is left out.
    """

    return [_left_out(model, judged, each) for each in ("source", *RESPECTS)]


def _left_out(model: ErrorModel, judged: Judged, what: str) -> LeftOut:
    columns: list[np.ndarray] = []
    for of, runs in judged:
        errors = _expected(model, of, [each for each, _ in judged], what)
        amounts = np.abs(np.add(runs.log_ratios, errors.centre))
        facts = errors.half_width(0.9), errors.half_width(0.5), min(1.0, _MOST_CHECKED / of.runs)
        columns.append(np.array([amounts, *(np.full(of.runs, fact) for fact in facts)]))
    return LeftOut(what.replace("_", " "), *np.concatenate(columns, axis=1))


def main() -> None:
    """Print the parameters; on stderr, how their intervals hold for runs that are left out."""
    judged = judged_runs()
    model = fit_error_model(judged)
    print(error_model_text(model), end="")
    for each in left_out(model, judged):
        inside, *thirds, half, median, _ = (f"{share:.1%}" for share in each.figures)
        by_third = ", ".join(thirds)
        print(
            f"each {each.what} left out: {inside} of runs inside (by third of widths: {by_third}), "
            f"{half} in half, median width {median}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
