"""The breakdown of an iteration that the compiled executor ran."""

from __future__ import annotations

import math
from dataclasses import fields

from simtrain.engine.wiring import Floats
from simtrain.iteration import Iteration
from simtrain.programs.iteration_tasks import IterationTasks
from simtrain.report.breakdown import PARTS, Breakdown, add_actions
from simtrain.report.gap_kernel import gap_seconds


def mean_breakdown_of(
    iteration: Iteration, tasks: IterationTasks, start_s: Floats, end_s: Floats
) -> Breakdown:
    """The average over the stages, as `breakdown.mean_breakdown` finds it but for rounding."""
    total = {field.name: 0.0 for field in fields(Breakdown)}
    for one, number in iteration.different_passes():
        add_actions(total, {iteration.passes.time(one): number})
    for kind, seconds in tasks.seconds_by_kind(start_s, end_s).items():
        if kind in PARTS:
            total[PARTS[kind]] += seconds
    for part, seconds in zip(_IN_GAPS, _gap_seconds(tasks, start_s, end_s), strict=True):
        total[part] += seconds
    num_stages = iteration.scenario.parallelism.pipeline
    mean = {name: seconds / num_stages for name, seconds in total.items()}
    mean["bubble_s"] = max(0.0, float(end_s.max()) - math.fsum(mean.values()))
    return Breakdown(**mean)


_IN_GAPS = ("pipeline_communication_s", "data_communication_s", "optimizer_s")


def _gap_seconds(tasks: IterationTasks, start_s: Floats, end_s: Floats) -> list[float]:
    """Seconds of all stages' gaps in which something of the parts runs elsewhere."""
    queues = tasks.wiring.queues
    seconds: list[float] = gap_seconds(
        tasks.own,
        tasks.others,
        len(_IN_GAPS),
        queues.queue_starts,
        queues.queue,
        start_s,
        end_s,
    ).tolist()
    return seconds
