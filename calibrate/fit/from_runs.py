"""Fits a profile to measured iterations: the few numbers that their times can show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from calibrate.fit.base import Base
from calibrate.fit.entry import Data
from calibrate.fit.factors import Entries, entries_to_fit, scaled_data
from calibrate.fit.result import profile_of
from calibrate.fit.robust import Estimate, FitProblem, Floats, estimate
from calibrate.fit.run_times import RunTimes, measured_s
from simtrain.base.accuracy import Comparison
from simtrain.errors import InputError
from simtrain.hardware.evidence import validated_on
from simtrain.studies.validation.measured import MeasuredRun
from simtrain.units import counted
from simtrain.views.kinds import SHARE, TEXT
from simtrain.views.view import Column, Paragraphs, Row, Table, View

NO_RUN = "E724"
_NUM_FOLDS = 5
_USUAL_ERROR = 0.1
"""Mean |error| of predicted iterations with a profile that was compared with none."""
_DETERMINED, _UNDETERMINED = 0.5, 0.9
_LEAST_CHANGE = 1e-3
_LEAST_WEIGHT = 0.25
"""Runs of a smaller weight are listed: they are 4 and more times as far off as usual."""
_NORMAL_90 = 1.645
_MEAN_TO_DEVIATION = 1.25
"""Standard deviation of normal errors over the mean of their absolute values."""
_OTHER_UNIT = 30
"""A measured time that is off by this factor is in another unit than its column says."""
_SET_BY_RUNS = "set by all measured runs of this machine"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RunsFit:
    """A profile fitted to measured iterations.

    Args:
        data: the profile's data.
        base: the base profile, with what all runs set.
        runs: the runs that were fitted.
        refused: the runs that could not be simulated, with the reason.
        factors: the fitted factors.
        result: their logarithms, and the weights of the runs.
        before_s: predicted times with the base; shape (runs,).
        fitted_s: predicted times with the fitted factors; shape (runs,).
        held_out_s: the time of each run as a fit without it predicts it; of a single run, that of
            the base. Shape (runs,).
    """

    data: Data
    base: Base
    runs: Sequence[MeasuredRun]
    refused: Sequence[MeasuredRun]
    factors: Sequence[Entries]
    result: Estimate
    before_s: Floats
    fitted_s: Floats
    held_out_s: Floats

    def comparison(self, title: str, predicted_s: Floats) -> Comparison:
        """Compare the measured times with predicted ones."""
        rows = (
            (run.name, measured_s(run), float(time_s))
            for run, time_s in zip(self.runs, predicted_s, strict=True)
        )
        return Comparison.of(title, "s", rows)

    @property
    def held_out(self) -> Comparison:
        """The measured times beside those of fits without them."""
        return self.comparison("cross-validated", self.held_out_s)

    def check(self) -> None:
        """Refuse a fit that no profile should be made of.

        Raises:
            InputError: a column is in another unit than its name says (E732), or the fit is worse
                than the base (E733).
        """
        ratios = np.abs(np.log([*map(measured_s, self.runs)] / self.before_s))
        if far := int(np.sum(ratios > math.log(_OTHER_UNIT))):
            message = f"{far} of {counted(len(self.runs), 'measured time')} are {_OTHER_UNIT} "
            fix = "correct the unit of their column and fit again; nothing was written"
            raise InputError.of("E732", f"{message}times as long or short as predicted", fix=fix)
        base, fit = (self.comparison("", times_s) for times_s in (self.before_s, self.fitted_s))
        medians = [float(np.median(np.abs(each.errors))) for each in (base, fit)]
        if fit.mean_abs_error > base.mean_abs_error and medians[1] > medians[0]:
            raise InputError.of(
                "E733",
                f"the fit is worse than {self.base.profile.name}: a mean |error| of "
                f"{fit.mean_abs_error:.1%}, not {base.mean_abs_error:.1%}",
                reason="the runs contradict each other, or need settings that they do not name",
                fix=f"keep {self.base.profile.name}, or correct the runs; nothing was written",
            )

    def view(self) -> View:
        """The factors, which of them the runs determine, and the errors."""
        columns = [
            Column("factor", "factor on", TEXT),
            Column("value", "value", TEXT),
            Column("low", "90 %\nfrom", TEXT),
            Column("high", "\nto", TEXT),
            Column("share", "width after\nof before", SHARE),
            Column("verdict", "by the runs", TEXT),
        ]
        table = Table("factors", "fitted factors", columns, [*map(Row, self._factor_cells())])
        names = ("with", "mean |error|", "median error", "worst")
        errors = Table(
            "errors",
            f"errors of {counted(len(self.runs), 'run')}",
            [Column(name, name, TEXT) for name in names],
            [Row(_error_cells(comparison)) for comparison in self._comparisons()],
        )
        parts: list[Any] = [table, errors]
        if doubtful := self._doubtful():
            columns = [Column(name, name, TEXT) for name in ("run", "measured", "fitted")]
            title = "far off, and of little weight in the fit"
            parts.append(Table("far_off", title, columns, [*map(Row, doubtful)]))
        return View([*parts, Paragraphs([*self._remarks()], style=None)])

    def _factor_cells(self) -> list[tuple[Any, ...]]:
        cells = []
        for entries, value, deviation in self.estimates():
            share = deviation / entries.width
            low, high = (math.exp(value + side * _NORMAL_90 * deviation) for side in (-1, 1))
            texts = (f"{math.exp(value):.3f}", f"{low:.3f}", f"{high:.3f}")
            cells.append((entries.factor.label, *texts, share, _verdict(share)))
        return cells

    def estimates(self) -> list[tuple[Entries, float, float]]:
        """Return each factor's entries, its logarithm, and the deviation of that."""
        values, deviations = self.result.values.tolist(), self.result.deviations.tolist()
        return [*zip(self.factors, values, deviations, strict=True)]

    def _comparisons(self) -> list[Comparison]:
        of_base = self.comparison(f"the base, {self.base.profile.name}", self.before_s)
        fitted = self.comparison("the fit", self.fitted_s)
        return [of_base, fitted, *([self.held_out] if len(self.runs) > 1 else [])]

    def _doubtful(self) -> list[tuple[str, str, str]]:
        return [
            (run.name, f"{measured_s(run):.4g} s", f"{time_s:.4g} s")
            for run, weight, time_s in zip(
                self.runs, self.result.weights, self.fitted_s, strict=True
            )
            if weight < _LEAST_WEIGHT
        ]

    def _remarks(self) -> list[str]:
        remarks = []
        if self.refused:
            first = self.refused[0]
            number = counted(len(self.refused), "run")
            remarks.append(f"Not used: {number}. The first, {first.name}: {first.refusal}")
        if len(self.runs) == 1:
            remarks.append("One run cannot be cross-validated; its interval is that of the base.")
        elif self.held_out.mean_abs_error > self.comparison("", self.before_s).mean_abs_error:
            remarks.append("Cross-validated, the fit is worse than the base: keep the base.")
        if not np.any(self.result.values):
            remarks.append("The runs determine no factor: the profile is as the base.")
        for entries, _, deviation in self.estimates():
            if "host.issue" in entries.factor.entries and deviation / entries.width > _UNDETERMINED:
                stacks = {run.scenario.software.stack for run in self.runs if run.scenario}
                if all(run.scenario and run.scenario.host_issue_s is not None for run in self.runs):
                    what = ", ".join(sorted(stacks))
                    remarks.append(f"The host time per kernel is that of the software, {what}.")
        return remarks


def _verdict(share: float) -> str:
    if share < _DETERMINED:
        return "determined"
    return "partly" if share < _UNDETERMINED else "not determined"


def _error_cells(comparison: Comparison) -> tuple[str, str, str, str]:
    errors = comparison.errors
    median, worst = float(np.median(errors)), max(errors, key=abs)
    mean = comparison.mean_abs_error
    return comparison.title, f"{mean:.1%}", f"{median:+.1%}", f"{worst:+.0%}"


def fit_runs(
    cluster: str,
    runs: Sequence[MeasuredRun],
    name: str,
    origin: str,
    on_progress: Progress = lambda phase, done, total: None,
) -> RunsFit:
    """Fit the factors that iteration times show to measured runs, near the base profile.

    The factors are those of the highest posterior density (`robust`). The expected scale of the
    errors is that of earlier predictions with the base.

    Args:
        cluster: name or path of the profile to start from.
        runs: the measured runs.
        name: the name of the fitted profile.
        origin: where the runs are from, as sources of entries write it.
        on_progress: receives the phase, and how many of how many steps are done.

    Raises:
        InputError: there is no such profile, or no run can be simulated (E724).
    """
    base = _with_common_settings(Base.load(cluster), runs)
    runs = _without_settings(runs)
    earlier_error = _earlier_error(cluster)
    factors = entries_to_fit(base, earlier_error)
    times = RunTimes(base.profile, runs, factors)
    if not times.runs:
        _refuse(times.refused)
    everything = range(len(times.runs))
    problem = FitProblem(
        partial(times.log_ratios, everything),
        np.array([entries.width for entries in factors]),
        np.array([entries.lower for entries in factors]),
        np.array([entries.upper for entries in factors]),
        _MEAN_TO_DEVIATION * earlier_error,
    )
    num_folds = min(_NUM_FOLDS, len(everything)) if len(everything) > 1 else 0
    on_progress("fitting", 0, 1 + num_folds)
    problem, result = _determined(problem)
    before_s = times.seconds(everything, np.zeros(len(factors)))
    held_out_s = before_s.copy()
    for fold in range(num_folds):
        on_progress("cross-validating", 1 + fold, 1 + num_folds)
        inside = [number for number in everything if number % num_folds != fold]
        outside = [number for number in everything if number % num_folds == fold]
        # Without a fold the factors change little: the runs that stay need no simulation.
        of_fold = replace(problem, log_ratios=partial(result.near, numbers=inside))
        values = estimate(of_fold, result.values).values
        held_out_s[outside] = times.seconds(outside, values)
    on_progress("cross-validating", 1 + num_folds, 1 + num_folds)
    fitted_s = times.seconds(everything, result.values)
    fit = RunsFit(
        base.data,
        base,
        times.runs,
        times.refused,
        factors,
        result,
        before_s,
        fitted_s,
        held_out_s,
    )
    return replace(fit, data=_fitted_data(fit, name, origin))


def _determined(problem: FitProblem) -> tuple[FitProblem, Estimate]:
    """Estimate the parameters that the runs determine; all others stay at their priors' value, 0.

    A run that is slower than predicted is so for one of several reasons. Without this, each of them
    would take a part of the difference, in proportion to the width of its prior.
    """
    result = estimate(problem)
    while True:
        loose = result.deviations >= _UNDETERMINED * problem.widths
        if not np.any(result.values[loose]):
            return problem, result
        lower, upper = (np.where(loose, 0.0, each) for each in (problem.lower, problem.upper))
        problem = replace(problem, lower=lower, upper=upper)
        # Bounds only ever close, so this ends after as many rounds as there are parameters.
        result = estimate(problem, np.clip(result.values, lower, upper))


def _refuse(refused: Sequence[MeasuredRun]) -> None:
    reasons = "; ".join(f"{run.name}: {run.refusal}" for run in refused[:3])
    more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
    raise InputError.of(
        NO_RUN,
        "no measured run can be simulated",
        fix="correct the runs, or what --set and --software say about them",
        reason=f"{reasons}{more}" or "the tables have no runs",
    )


def _earlier_error(cluster: str) -> float:
    """Return the mean |error| of earlier predictions with a profile."""
    errors = validated_on(cluster)
    groups = errors.measured_runs if errors else []
    num_runs = sum(group.num_runs for group in groups)
    if num_runs:
        return max(0.02, sum(group.num_runs * group.mean_error for group in groups) / num_runs)
    return _USUAL_ERROR


def _fitted_data(fit: RunsFit, name: str, origin: str) -> Data:
    """Return the base's data with the fitted factors, and marks of what is fitted."""
    data = fit.base.data
    fitted_on = fit.comparison("the fit", fit.fitted_s).summary().replace("points", "runs")
    held_out = f"; cross-validated {fit.held_out.mean_abs_error:.1%}" if len(fit.runs) > 1 else ""
    origin = f"{len(fit.runs)} runs of {origin}" if len(fit.runs) > 1 else f"a run of {origin}"
    changed = []
    for entries, value, deviation in fit.estimates():
        if abs(value) < _LEAST_CHANGE:
            continue
        within = f"90 % interval of the factor {math.expm1(_NORMAL_90 * deviation):.1%} either side"
        source = f"fitted to {origin} ({within})"
        data = scaled_data(data, entries.factor, value, source, fitted_on + held_out)
        changed.append(entries.factor.label)
    what = f"{', '.join(changed) or 'nothing'} fitted to {origin}"
    return data | {"name": name, "description": f"{data['description']}; {what}"}


def _with_common_settings(base: Base, runs: Sequence[MeasuredRun]) -> Base:
    """Return the base with the entries of the hardware that all runs set to the same."""
    settings = _common_settings(runs)
    if not settings:
        return base
    data = _overlaid(base.data, settings)
    return replace(base, profile=profile_of(data), data=data)


def _common_settings(runs: Sequence[MeasuredRun]) -> Mapping[str, Any]:
    settings = [run.scenario.hardware for run in runs if run.scenario]
    # The host's time of a scenario replaces that of its software too, which no profile does.
    alike = bool(settings) and all(each == settings[0] for each in settings)
    return settings[0] if alike and "host" not in settings[0] else {}


def _overlaid(data: Data, settings: Mapping[str, Any]) -> Data:
    """Return a profile's data with the values of a scenario; their entries were checked."""
    changed = dict(data)
    for name, value in settings.items():
        old = data[name]
        if "value" in old and "source" in old:
            changed[name] = {"value": value, "source": _SET_BY_RUNS}
        else:
            changed[name] = _overlaid(old, value)
    return changed


def _without_settings(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs without the settings that the base has now."""
    if not _common_settings(runs):
        return [*runs]
    return [
        replace(run, scenario=run.scenario.replace({"hardware": {}})) if run.scenario else run
        for run in runs
    ]
