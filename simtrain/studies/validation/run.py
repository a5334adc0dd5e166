"""Simulate measured runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simtrain.errors import InputError
from simtrain.hardware.interval import Interval
from simtrain.hardware.run_kind import RunKind
from simtrain.importing.runs.measured import MeasuredRun, PeakOf, in_one_line
from simtrain.iteration.report.interval import run_kind
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.simulation import simulate_memory
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
                _peak_bytes(run.peak_of, evaluation) if run.peak_bytes is not None else None,
                *_interval(evaluation, evaluator),
                run.ran,
                run.assumed,
            )
        )
    on_progress(len(runs), len(runs))
    return Validation(cluster, rows)


def _interval(
    evaluation: Evaluation | None, evaluator: Evaluator
) -> tuple[RunKind | None, float | None, Interval | None]:
    """Return the kind, the extrapolated share, and where the measured time is predicted to lie."""
    if evaluation is None or evaluation.run is None:
        return None, None, None
    scenario, time_s = evaluation.scenario, evaluation.run.iteration_time_s
    share = evaluator.extrapolated_compute(scenario)
    kind = run_kind(scenario, evaluator.profile_of(scenario))
    return kind, share, evaluator.interval(scenario, time_s)


def _peak_bytes(peak_of: PeakOf, evaluation: Evaluation | None) -> int | None:
    """Return the predicted peak of what was measured."""
    if evaluation is None or peak_of is PeakOf.GPU:
        return evaluation.peak_bytes if evaluation else None
    stages = simulate_memory(evaluation.scenario).stages
    tensors_bytes = [stage.peak_bytes - stage.allocator_bytes for stage in stages]
    return tensors_bytes[-1] if peak_of is PeakOf.LAST_STAGE else max(tensors_bytes)


def _evaluated(run: MeasuredRun, evaluator: Evaluator) -> tuple[Evaluation | None, str]:
    """Return the prediction of a run, or why there is none."""
    if run.scenario is None:
        return None, run.refusal
    try:
        return evaluator.evaluate(run.scenario), ""
    except InputError as error:
        return None, in_one_line(error)
