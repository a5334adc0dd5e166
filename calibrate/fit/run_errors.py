"""Errors of the runs that a profile is fitted to, from which its later intervals follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from calibrate.fit.from_runs import RunsFit
from simtrain.hardware.evidence import MeasuredRuns, ValidatedOn, validated_on
from simtrain.studies.validation import Validation, error_classes, validate_runs
from simtrain.studies.validation.measured import MeasuredRun
from simtrain.units import counted

_LOWEST = -0.9999
_MEAN_OF_SCALE = 1.0
"""Mean amount of Student's distribution with four degrees of freedom."""
_MANY_RUNS = 20
"""The errors of so many runs are not small by chance."""


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
        groups = [_not_below(group, fit.result.scale) for group in errors.measured_runs]
        of_base = []
    else:
        remark = "the error of the base profile: one run cannot be cross-validated"
        groups = errors.measured_runs
        of_base = [_with_base(group, base) for group in (before.measured_runs if before else [])]
    updates = {"seen": "fitted", "remark": remark}
    groups = [*of_base, *(group.model_copy(update=updates) for group in groups)]
    summary = f"{counted(len(runs), 'measured iteration')}, to which the profile is fitted."
    return errors.model_copy(
        update={
            "summary": summary,
            "measured_runs": groups,
            "doubt": before.doubt if before else None,
        }
    )


def _not_below(group: MeasuredRuns, scale: float) -> MeasuredRuns:
    """Return a group of few runs with errors as large as those of further runs must be expected.

    The errors of few runs may be small by chance.

    Args:
        group: measured runs and their errors.
        scale: scale of the errors, by the fit's runs and by earlier ones of the base.
    """
    if group.num_runs >= _MANY_RUNS or group.mean_error >= _MEAN_OF_SCALE * scale:
        return group
    # Runs without any error get that of the scale.
    factor = _MEAN_OF_SCALE * scale / group.mean_error if group.mean_error else 0.0
    errors = [error * factor if error else _MEAN_OF_SCALE * scale for error in group.errors]
    return group.model_copy(update={"errors": [max(round(error, 4), _LOWEST) for error in errors]})


def _with_base(group: MeasuredRuns, base: str) -> MeasuredRuns:
    """Return runs that judged the base, as runs that judge a profile near it."""
    return group.model_copy(update={"runs": f"with {Path(base).stem}, the base: {group.runs}"})


def _on(cluster: str, run: MeasuredRun) -> MeasuredRun:
    """Return a run on another machine."""
    assert run.scenario is not None, "only runs with a scenario are fitted"
    return replace(run, scenario=run.scenario.replace({"cluster": cluster}))
