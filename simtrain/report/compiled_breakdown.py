"""The breakdown of an iteration that the compiled executor ran."""

from __future__ import annotations

import math
from dataclasses import fields

from simtrain.engine.wiring import Floats
from simtrain.programs.arrays import IterationTasks
from simtrain.programs.seconds import IterationSeconds
from simtrain.report.breakdown import PARTS, Breakdown, add_actions
from simtrain.report.gap_kernel import gap_seconds


def mean_breakdown_of(
    seconds: IterationSeconds, tasks: IterationTasks, start_s: Floats, end_s: Floats
) -> Breakdown:
    """The average over the stages, as `breakdown.mean_breakdown` finds it but for rounding."""
    total = {field.name: 0.0 for field in fields(Breakdown)}
    for slot, time in seconds.passes.items():
        add_actions(total, {time: seconds.plan.num_passes[slot.chunk, slot.keeps]})
    for kind, kind_s in tasks.seconds_by_kind(start_s, end_s).items():
        if kind in PARTS:
            total[PARTS[kind]] += kind_s
    for part, gap_s in zip(_IN_GAPS, _gap_seconds(tasks, start_s, end_s), strict=True):
        total[part] += gap_s
    num_stages = seconds.plan.mesh.pp
    mean = {name: part_s / num_stages for name, part_s in total.items()}
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
