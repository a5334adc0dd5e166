"""Simulate measured runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Protocol

from simtrain.base.function_caches import forget_cached
from simtrain.errors import InputError
from simtrain.hardware.interval import Interval
from simtrain.hardware.run_kind import RunKind
from simtrain.iteration.report.interval import run_kind
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.on_machine import memory_on
from simtrain.studies.validation.guess import SAMPLE, guess_setting
from simtrain.studies.validation.measured import (
    MeasuredRun,
    PeakOf,
    in_one_line,
    other_model,
)
from simtrain.studies.validation.result import Prediction, ValidatedRun, Validation


class SizedRuns(Protocol):
    """Runs whose number is known; those of long tables are made when they are reached."""

    def __len__(self) -> int:
        """Number of runs."""

    def __iter__(self) -> Iterator[MeasuredRun]:
        """Yield the runs."""


_MOST_ALIVE = 256
"""Different scenarios after which what is cached of them is forgotten."""


def validate_runs(
    runs: SizedRuns,
    cluster: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Simulate every run that can be simulated, and hold it against its measurement.

    Runs of the same scenario are simulated once.

    Args:
        runs: the measured runs (`read_runs` of `simtrain/importing/runs/` reads files).
        cluster: the hardware profile on which their scenarios are.
        on_progress: receives how many of how many runs are done.
    """
    simulations = _Simulations()
    rows, sample = [], list[MeasuredRun]()
    # Some more than are sampled, because not all can be simulated.
    stride = max(1, len(runs) // (4 * SAMPLE))
    for done, run in enumerate(runs):
        on_progress(done, len(runs))
        figures = simulations.of(run)
        is_complete = run.stated is None
        if figures.prediction and run.ran and not is_complete and done % stride == 0:
            sample.append(run)
        rows.append(
            ValidatedRun(
                run.name,
                run.model,
                run.file,
                run.line,
                figures.prediction,
                figures.refusal,
                run.iteration_time_s,
                run.peak_bytes,
                figures.peak_bytes.get(run.peak_of) if run.peak_bytes is not None else None,
                figures.kind,
                figures.extrapolated,
                figures.interval,
                run.ran,
                tuple(map(sys.intern, run.assumed)),
                run.time_column,
                run.peak_column,
            )
        )
    validation = Validation(cluster, rows)
    if not validation.wrong_units:
        every = -(-len(sample) // SAMPLE) or 1
        guess = guess_setting(sample[::every], Evaluator(allow_oom=True, breakdowns=False))
        validation = replace(validation, guess=guess)
    on_progress(len(runs), len(runs))
    return validation


@dataclass(frozen=True, slots=True)
class _Figures:
    """What is predicted for a scenario; `peak_bytes` has only what a row needed."""

    prediction: Prediction | None
    refusal: str
    kind: RunKind | None = None
    extrapolated: float | None = None
    interval: Interval | None = None
    peak_bytes: dict[PeakOf, int | None] = field(default_factory=dict)


class _Simulations:
    """Simulates different scenarios once, in memory that does not grow with their number.

    What remains of a scenario is the figures of its rows.
    """

    def __init__(self) -> None:
        self._evaluator = Evaluator(allow_oom=True)
        self._figures: dict[bytes, _Figures] = {}

    def of(self, run: MeasuredRun) -> _Figures:
        """Return what is predicted for a run."""
        if run.scenario is None:
            return _Figures(None, run.refusal)
        settings = run.scenario.model_dump_json(exclude={"name", "description"})
        text = f"{run.peak_of} {run.parameters_billion} {settings}"
        key = sha256(text.encode()).digest()
        if key not in self._figures:
            if len(self._figures) % _MOST_ALIVE == _MOST_ALIVE - 1:
                self._evaluator = Evaluator(allow_oom=True)
                forget_cached()
            self._figures[key] = self._simulated(run)
        return self._figures[key]

    def _simulated(self, run: MeasuredRun) -> _Figures:
        evaluation, refusal = _evaluated(run, self._evaluator)
        if evaluation is None:
            return _Figures(None, refusal)
        peak_bytes = {run.peak_of: _peak_bytes(run.peak_of, evaluation, self._evaluator)}
        interval = _interval(evaluation, self._evaluator)
        return _Figures(Prediction.of(evaluation), refusal, *interval, peak_bytes)


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


def _peak_bytes(peak_of: PeakOf, evaluation: Evaluation, evaluator: Evaluator) -> int | None:
    """Return the predicted peak of what was measured."""
    if peak_of is PeakOf.GPU:
        return evaluation.peak_bytes
    scenario = evaluation.scenario
    stages = memory_on(scenario, evaluator.machine_of(scenario)).stages
    tensors_bytes = [stage.peak_bytes - stage.allocator_bytes for stage in stages]
    return tensors_bytes[-1] if peak_of is PeakOf.LAST_STAGE else max(tensors_bytes)


def _evaluated(run: MeasuredRun, evaluator: Evaluator) -> tuple[Evaluation | None, str]:
    """Return the prediction of a run, or why there is none."""
    if run.scenario is None:
        return None, run.refusal
    try:
        evaluation = evaluator.evaluate(run.scenario)
    except InputError as error:
        return None, in_one_line(error)
    if wrong := other_model(run, evaluator.num_parameters(run.scenario)):
        return None, wrong
    return evaluation, ""
