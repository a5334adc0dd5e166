"""Find the cheapest change that makes a scenario fit in memory.

Single changes and pairs of changes on the same GPUs are tried first. If none of them is enough,
more GPUs are tried, alone and with one other change. The cheapest change has the fewest GPU-seconds
per iteration, of those that surely fit; one that may not fit is named if none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from simtrain.errors import DoesNotFitError
from simtrain.iteration.memory.report import COMPONENT_LABELS, MemoryReport
from simtrain.scenario import Scenario
from simtrain.studies.changes import (
    ZERO_STAGES,
    Change,
    Trial,
    all_values,
    changes_of,
    ranked,
    try_each,
)
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.units import counted, format_seconds, gib

_FACTORS = (2, 4, 8)


def cheapest_change(
    scenario: Scenario, evaluator: Evaluator, on_progress: Callable[[str], None]
) -> Trial[Change, Evaluation] | None:
    """Find the cheapest change that makes the scenario fit; None if none of the tried changes does.

    Args:
        scenario: a scenario that does not fit.
        evaluator: evaluates the changed scenarios.
        on_progress: receives a description of the next attempt.
    """

    def report(attempt: str) -> None:
        on_progress(f"it does not fit; {attempt}")

    unsure: list[Trial[Change, Evaluation]] = []
    for changes in (_without_more_gpus(scenario), *_with_more_gpus(scenario)):
        fitting = ranked(try_each(changes, evaluator.changing(scenario, report)), _cost)
        for trial in fitting:
            if trial.evaluation.fit.fits_surely:
                return trial
        unsure += fitting
    return unsure[0] if unsure else None


def _cost(trial: Trial[Change, Evaluation]) -> tuple[float, int]:
    """GPU-seconds per iteration; of equally cheap changes, the one of fewer fields is better."""
    return trial.evaluation.gpu_seconds, len(trial.change.values)


def _without_more_gpus(scenario: Scenario) -> Iterator[Change]:
    """Yield single changes that save memory, and then pairs of them."""
    changes = [*_saving_memory(scenario)]
    yield from changes
    for first, second in combinations(changes, 2):
        shared = first.values.keys() & second.values.keys()
        if shared not in (first.values.keys(), second.values.keys()):
            yield first | second


def _with_more_gpus(scenario: Scenario) -> Iterator[list[Change]]:
    """For each factor: that many times the GPUs, alone and with one other change."""
    split = scenario.parallelism
    for factor in _FACTORS:
        wider = [
            Change({"parallelism.tensor": factor * split.tensor}),
            Change({"parallelism.pipeline": factor * split.pipeline}),
        ]
        yield wider + [more | change for more in wider for change in _saving_memory(scenario)]


def _saving_memory(scenario: Scenario) -> Iterator[Change]:
    yield from changes_of(
        scenario,
        {
            "parallelism.sequence_parallel": [True],
            "memory.deallocate_outputs": [True],
            "memory.zero_stage": ZERO_STAGES[scenario.memory.zero_stage + 1 :],
            "recompute": ["auto", "selective", "full"],
            "batch.micro": [max(scenario.batch.micro // 2, 1)],
            "memory.offload_optimizer": [True],
        },
    )


def does_not_fit(
    scenario: Scenario, report: MemoryReport, remedy: Trial[Change, Evaluation] | None
) -> DoesNotFitError:
    """Build the error: the stage that does not fit, its components, and the remedy."""
    fullest, name = report.fullest, scenario.name or "the scenario"
    if report.missing_bytes <= 0 and report.host:
        return DoesNotFitError.of(
            "E601",
            f"{name} does not fit: {report.host.shortage}",
            reason="the host holds each activation from the start of its copy out to the end of "
            "its copy back, and model states all the time",
            fix=f"{_advice(scenario, remedy)}, or run --allow-oom to simulate it anyway",
        )
    sizes = fullest.components_bytes
    parts = [f"{COMPONENT_LABELS[part]} {gib(size)}" for part, size in sizes.items()]
    return DoesNotFitError.of(
        "E601",
        f"{name} does not fit: stage {fullest.stage} needs "
        f"{gib(fullest.peak_bytes)} GiB of the {gib(report.capacity_bytes)} GiB of its GPU, "
        f"{gib(report.missing_bytes)} GiB too much",
        reason=f"its peak, during the {fullest.peak_words}, consists of (GiB) {', '.join(parts)}",
        fix=f"{_advice(scenario, remedy)}, or run --allow-oom to simulate it anyway",
    )


def _advice(scenario: Scenario, remedy: Trial[Change, Evaluation] | None) -> str:
    if remedy is None and scenario.program is not None:
        return (
            "none of the changes tried is enough: record the program again with a smaller batch, "
            "with checkpoints or with more shards, or use GPUs with more memory"
        )
    if remedy is None:
        return "none of the changes tried is enough: use GPUs with more memory, or more GPUs"
    evaluation, change, chosen = remedy.evaluation, remedy.change, ""
    if (words := evaluation.chosen_recompute) is not None:
        # A strategy can be written in the scenario; a choice that differs by stage cannot.
        if words in all_values("recompute.strategy") and change.values.get("recompute") == "auto":
            change |= Change({"recompute": words})
        else:
            chosen = f", where recompute=auto chooses {words}"
    time, gpus = format_seconds(evaluation.iteration_time_s), evaluation.scenario.num_gpus
    fit = evaluation.fit
    fits = "fits" if fit.fits_surely else f"may fit ({fit.probability:.0%})"
    return (
        f"the cheapest change that {fits} is {change.options}{chosen}: "
        f"{gib(evaluation.peak_bytes)} GiB, {time} on {counted(gpus, 'GPU')}"
    )
