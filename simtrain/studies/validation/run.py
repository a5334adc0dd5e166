"""Simulate measured runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simtrain.errors import InputError
from simtrain.importing.runs.measured import MeasuredRun, in_one_line
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.validation.result import ValidatedRun, Validation


def validate_runs(
    runs: Sequence[MeasuredRun],
    cluster: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Simulate every run that can be simulated, and hold it against its measurement.

    Args:
        runs: the measured runs (`simtrain.importing.runs`).
        cluster: the hardware profile on which their scenarios are.
        on_progress: receives how many of how many runs are done.
    """
    evaluator = Evaluator(allow_oom=True)
    rows = []
    for done, run in enumerate(runs):
        on_progress(done, len(runs))
        evaluation, refusal = _evaluated(run, evaluator)
        rows.append(
            ValidatedRun(
                run.name,
                run.model,
                run.file,
                run.line,
                evaluation,
                refusal,
                run.iteration_time_s,
                run.peak_bytes,
                run.ran,
                run.assumed,
            )
        )
    on_progress(len(runs), len(runs))
    return Validation(cluster, rows)


def _evaluated(run: MeasuredRun, evaluator: Evaluator) -> tuple[Evaluation | None, str]:
    """Return the prediction of a run, or why there is none."""
    if run.scenario is None:
        return None, run.refusal
    try:
        return evaluator.evaluate(run.scenario), ""
    except InputError as error:
        return None, in_one_line(error)
