"""Fits a profile to measured iterations: the few numbers that their times can show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.fit.base import Base, Data
from calibrate.fit.factors import Entries, entries_to_fit, scaled_data, scaled_profile
from calibrate.fit.result import profile_of
from calibrate.fit.robust import Estimate, FitProblem, Floats, estimate
from simtrain.base.accuracy import ErrorTable
from simtrain.durations.model import DurationModel
from simtrain.errors import InputError
from simtrain.hardware.evidence import MeasuredRuns, ValidatedOn, validated_on
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.plan import Plan
from simtrain.iteration.planned import run_iteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.studies.simulation import checked_profile, simulate
from simtrain.studies.validation import (
    MeasuredRun,
    Validation,
    error_classes,
    in_one_line,
    validate_runs,
)
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

    def comparison(self, title: str, predicted_s: Floats) -> ErrorTable:
        rows = (
            (run.name, measured_s(run), float(time_s))
            for run, time_s in zip(self.runs, predicted_s, strict=True)
        )
        return ErrorTable.of(title, "s", rows)

    @property
    def held_out(self) -> ErrorTable:
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
        values, deviations = self.result.values.tolist(), self.result.deviations.tolist()
        return [*zip(self.factors, values, deviations, strict=True)]

    def _comparisons(self) -> list[ErrorTable]:
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


def _error_cells(comparison: ErrorTable) -> tuple[str, str, str, str]:
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
    errors = validated_on(cluster)
    groups = errors.measured_runs if errors else []
    num_runs = sum(group.num_runs for group in groups)
    if num_runs:
        return max(0.02, sum(group.num_runs * group.mean_error for group in groups) / num_runs)
    return _USUAL_ERROR


def _fitted_data(fit: RunsFit, name: str, origin: str) -> Data:
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
    changed = dict(data)
    for name, value in settings.items():
        old = data[name]
        if "value" in old and "source" in old:
            changed[name] = {"value": value, "source": _SET_BY_RUNS}
        else:
            changed[name] = _overlaid(old, value)
    return changed


def _without_settings(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    if not _common_settings(runs):
        return [*runs]
    return [
        replace(run, scenario=run.scenario.replace({"hardware": {}})) if run.scenario else run
        for run in runs
    ]


class RunTimes:
    """Simulates runs with factors on the entries of their profiles.

    `runs` are those that can be simulated, `refused` the others, with the reason.

    Args:
        profile: the base profile.
        runs: the runs.
        factors: the factors.
    """

    def __init__(
        self,
        profile: HardwareProfile,
        runs: Sequence[MeasuredRun],
        factors: Sequence[Entries],
    ) -> None:
        self.profile, self.factors = profile, factors
        self.runs = list[MeasuredRun]()
        self.refused = list[MeasuredRun]()
        self._plans = list[tuple[str, Plan]]()
        self._profiles = dict[str, HardwareProfile]()
        for run in runs:
            self._add(run)

    def _add(self, run: MeasuredRun) -> None:
        if run.scenario is None or run.iteration_time_s is None:
            reason = run.refusal or "it has no measured iteration time"
            self.refused.append(replace(run, refusal=reason))
            return
        key = repr(run.scenario.hardware)
        try:
            # A run that sets entries of the hardware has a profile of its own.
            if run.scenario.hardware:
                profile = self._profiles.get(key) or checked_profile(run.scenario)
            else:
                profile = self.profile
            checked_profile(run.scenario, profile)
            self._plans.append((key, _plan_of(run, profile)))
        except InputError as error:
            self.refused.append(replace(run, refusal=in_one_line(error)))
            return
        self._profiles[key] = profile
        self.runs.append(run)

    def seconds(self, numbers: Sequence[int], logarithms: Floats) -> Floats:
        machines = {
            key: Machine(DurationModel(scaled_profile(profile, self.factors, logarithms.tolist())))
            for key, profile in self._profiles.items()
        }
        times = []
        for number in numbers:
            key, plan = self._plans[number]
            times.append(run_iteration(plan, machines[key]).timeline.makespan_s)
        return np.array(times)

    def log_ratios(self, numbers: Sequence[int], logarithms: Floats) -> Floats:
        of_runs_s = np.array([measured_s(self.runs[number]) for number in numbers])
        ratios: Floats = np.log(self.seconds(numbers, logarithms) / of_runs_s)
        return ratios


def measured_s(run: MeasuredRun) -> float:
    """Return the iteration time of a run that has one."""
    assert run.iteration_time_s is not None, "only timed runs are fitted"
    return run.iteration_time_s


def _plan_of(run: MeasuredRun, profile: HardwareProfile) -> Plan:
    scenario = run.scenario
    assert scenario is not None, "only runs with a scenario have a plan"
    if scenario.recompute.is_open:
        return simulate(scenario, profile).plan
    return Plan.of(scenario, profile.cluster.domains_of(scenario.num_gpus))


def errors_of_fit(fit: RunsFit, cluster: str, base: str, source: str) -> ValidatedOn:
    """Return the errors of a fit's runs by kind, each as a fit without the run predicts it.

    Errors of the runs that a fit has seen would be too small for other runs. A single run cannot be
    left out: what judged the base judges the profile too, which is near it. What is doubtful about
    the base stays so.

    Args:
        fit: the fit.
        cluster: the file of its profile.
        base: the base profile.
        source: where the runs are.

    Raises:
        InputError: a file of errors is bad.
    """
    runs = [_on(cluster, run) for run in fit.runs]
    validation = validate_runs(runs, cluster)
    times_s = fit.held_out_s.tolist()
    rows = [
        replace(row, simulated_s=time_s)
        for row, time_s in zip(validation.rows, times_s, strict=True)
    ]
    errors = error_classes(Validation.of(cluster, rows), source)
    before = validated_on(base)
    if len(runs) > 1:
        in_sample = f"{fit.comparison('the fit', fit.fitted_s).mean_abs_error:.1%}"
        remark = f"cross-validated; the fit to all {len(runs)} runs has a mean of {in_sample}"
        of_base = []
    else:
        remark = "the error of the base profile: one run cannot be cross-validated"
        of_base = [_with_base(group, base) for group in (before.measured_runs if before else [])]
    updates = {"seen": "fitted", "remark": remark}
    groups = [*of_base, *(group.model_copy(update=updates) for group in errors.measured_runs)]
    summary = f"{counted(len(runs), 'measured iteration')}, to which the profile is fitted."
    return errors.model_copy(
        update={
            "summary": summary,
            "measured_runs": groups,
            "doubt": before.doubt if before else None,
        }
    )


def _with_base(group: MeasuredRuns, base: str) -> MeasuredRuns:
    return group.model_copy(update={"runs": f"with {Path(base).stem}, the base: {group.runs}"})


def _on(cluster: str, run: MeasuredRun) -> MeasuredRun:
    assert run.scenario is not None, "only runs with a scenario are fitted"
    return replace(run, scenario=run.scenario.replace({"cluster": cluster}))
