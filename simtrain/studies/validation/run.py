"""Simulate measured runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from simtrain.base.function_caches import forget_cached
from simtrain.errors import InputError
from simtrain.iteration.report.breakdown import breakdown_by_name
from simtrain.iteration.report.interval import run_kind
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.on_machine import memory_on
from simtrain.studies.validation.measured import (
    MeasuredRun,
    PeakOf,
    Runs,
    in_one_line,
    other_model,
)
from simtrain.studies.validation.result import ValidatedRun, Validation

_MOST_ALIVE = 256
"""Different scenarios after which what is cached of them is forgotten."""


def validate_runs(
    runs: Sequence[MeasuredRun] | Runs,
    cluster: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Simulate every run that can be simulated, and hold it against its measurement.

    Runs of the same scenario are simulated once.

    Args:
        runs: the measured runs (`read_runs` of `simtrain/importing/runs.py` reads files).
        cluster: the hardware profile on which their scenarios are.
        on_progress: receives how many of how many runs are done.
    """
    simulations = _Simulations()
    rows = []
    for done, run in enumerate(runs):
        on_progress(done, len(runs))
        row = simulations.of(run)
        rows.append(
            replace(
                row,
                name=run.name,
                model=run.model,
                file=run.file,
                line=run.line,
                measured_s=run.iteration_time_s,
                measured_peak_bytes=run.peak_bytes,
                simulated_peak_bytes=row.simulated_peak_bytes if run.peak_bytes else None,
                ran=run.ran,
                assumed=tuple(map(sys.intern, run.assumed)),
            )
        )
    on_progress(len(runs), len(runs))
    return Validation.of(cluster, rows)


class _Simulations:
    """Simulates different scenarios once, in memory that does not grow with their number.

    What remains of a scenario is the figures of its rows.
    """

    def __init__(self) -> None:
        self._evaluator = Evaluator(allow_oom=True)
        self._rows: dict[bytes, ValidatedRun] = {}

    def of(self, run: MeasuredRun) -> ValidatedRun:
        """Return what is predicted for a run."""
        if run.scenario is None:
            return _row(run, refusal=run.refusal)
        settings = run.scenario.model_dump_json(exclude={"name", "description"})
        text = f"{run.peak_of} {run.parameters_billion} {settings}"
        key = sha256(text.encode()).digest()
        if key not in self._rows:
            if len(self._rows) % _MOST_ALIVE == _MOST_ALIVE - 1:
                self._evaluator = Evaluator(allow_oom=True)
                forget_cached()
            self._rows[key] = self._simulated(run, run.scenario)
        return self._rows[key]

    def _simulated(self, run: MeasuredRun, scenario: Scenario) -> ValidatedRun:
        evaluator = self._evaluator
        try:
            evaluation = evaluator.evaluate(scenario)
        except InputError as error:
            return _row(run, refusal=in_one_line(error))
        if wrong := other_model(run, evaluator.num_parameters(scenario)):
            return _row(run, refusal=wrong)
        scenario = evaluation.scenario
        row = _row(
            run,
            simulated_peak_bytes=_peak_bytes(run.peak_of, evaluation, evaluator),
            fits=evaluation.fits,
            settings=_settings(scenario),
            num_layers=scenario.model.num_layers,
        )
        if evaluation.run is None or evaluation.run.breakdown is None:
            return row
        time_s = evaluation.run.iteration_time_s
        return replace(
            row,
            simulated_s=time_s,
            breakdown_s=breakdown_by_name(evaluation.run.breakdown),
            kind=run_kind(scenario, evaluator.profile_of(scenario)),
            extrapolated=evaluator.extrapolated_compute(scenario),
            interval=evaluator.interval(scenario, time_s),
        )


def _row(run: MeasuredRun, **figures: Any) -> ValidatedRun:
    return ValidatedRun(run.name, run.model, run.file, run.line, **figures)


def _settings(scenario: Scenario) -> dict[str, str | int]:
    """Return what tells runs apart."""
    split, model = scenario.parallelism, scenario.model
    layout = {"pipeline": split.pipeline, "interleave": scenario.num_chunks, "data": split.data}
    return {
        **{"GPUs": scenario.num_gpus, "tensor": split.tensor, **layout},
        **{"context": split.context, "expert": split.expert, "microbatch": scenario.batch.micro},
        **{"sequence": model.seq_length, "width": model.hidden_size},
        **{"data type": scenario.precision.compute, "recompute": scenario.recompute.strategy},
    }


def _peak_bytes(peak_of: PeakOf, evaluation: Evaluation, evaluator: Evaluator) -> int | None:
    """Return the predicted peak of what was measured."""
    if peak_of is PeakOf.GPU:
        return evaluation.peak_bytes
    scenario = evaluation.scenario
    stages = memory_on(scenario, evaluator.machine_of(scenario)).stages
    tensors_bytes = [stage.peak_bytes - stage.allocator_bytes for stage in stages]
    return tensors_bytes[-1] if peak_of is PeakOf.LAST_STAGE else max(tensors_bytes)
