"""What is said of a scenario that does not fit in memory."""

from __future__ import annotations

from simtrain.errors import DoesNotFitError, Problem
from simtrain.memory.report import MemoryReport
from simtrain.report.memory_page import gib
from simtrain.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.remedy import Remedy
from simtrain.units import format_seconds


def does_not_fit(
    scenario: Scenario, report: MemoryReport, remedy: Remedy[Result] | None
) -> DoesNotFitError:
    """By how much it does not fit, where, what that is made of, and what would make it fit."""
    fullest = report.fullest
    parts = [f"{name} {gib(size)}" for name, size in fullest.components_bytes.items()]
    return DoesNotFitError(
        [
            Problem(
                code="E601",
                message=f"{scenario.name or 'the scenario'} does not fit: stage {fullest.stage} "
                f"needs {gib(fullest.peak_bytes)} GiB of the {gib(report.capacity_bytes)} GiB of "
                f"its GPU, {gib(report.missing_bytes)} GiB too much",
                reason=f"at its fullest, in {fullest.peak_name}, it holds (GiB) {', '.join(parts)}",
                fix=f"{_advice(remedy)}, or --allow-oom to simulate it all the same",
            )
        ]
    )


def _advice(remedy: Remedy[Result] | None) -> str:
    if remedy is None:
        return "take a larger GPU or more of them (nothing that was tried is enough)"
    found = remedy.run
    time = f"{format_seconds(found.iteration_time_s)} on {remedy.scenario.num_gpus} GPUs"
    chosen = f" ({found.recompute_choice.splitlines()[0]})" if found.recompute_choice else ""
    return (
        f"the cheapest change that fits is {remedy.options}{chosen}: "
        f"{gib(found.memory.fullest.peak_bytes)} GiB, {time}"
    )
