"""Data of one iteration in a report: the `--json` of other commands, and arrays to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simtrain.base.packed_arrays import packed
from simtrain.base.wording import Sentence
from simtrain.hardware.entries import entries_of
from simtrain.iteration.report.activities import ACTIVITIES, Bars
from simtrain.iteration.report.origins import FIGURES, explain_figure
from simtrain.iteration.report.remarks import RunReport
from simtrain.iteration.report.result import Result
from simtrain.studies.sensitivity import ResourceCurve

NUM_ROWS = 3
"""Rows of a stage in a timeline: its passes, its transfers, its buckets."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """An iteration of a report.

    Args:
        name: the name by which the user referred to the scenario.
        result: its simulation.
        without_effect: remarks on settings that change nothing (`no_effect`).
        curves: the same iteration with less and more of each resource (`resource_curves`). Without
            them, the report has no sliders.
        warnings: more remarks (`unaligned_gather`).
    """

    name: str
    result: Result
    without_effect: Mapping[str, str] = field(default_factory=dict)
    curves: Sequence[ResourceCurve] = ()
    warnings: Sequence[Sentence] = ()


def run_data(run: ReportedRun) -> dict[str, Any]:
    """Return the data of an iteration.

    `result` has the data of `simtrain run --json`, `operators` those of `--ops --json`, and
    `explained` those of `simtrain explain --json` for each figure, without `made_with`.
    """
    result = run.result
    return {
        "name": run.name,
        "result": RunReport(result, run.without_effect, run.warnings).to_dict(),
        "fullest_stage": result.memory.fullest.stage,
        "operators": result.operators().to_dict(),
        "explained": {name: explain_figure(result, name).to_dict() for name in FIGURES},
        "profile": _profile(result),
        "curves": [curve.to_dict() for curve in run.curves],
        "timeline": timeline_data(result),
        "memory_over_time": memory_data(result),
    }


def _profile(result: Result) -> dict[str, Any]:
    profile = result.profile
    fits = [entry.fitted_on for _, entry in entries_of(profile)]
    return {
        "name": profile.name,
        "description": profile.description,
        "num_entries": len(fits),
        "num_fitted": sum(map(bool, fits)),
    }


def timeline_data(result: Result) -> dict[str, Any]:
    """Return the bars of a timeline, sorted by lane and start.

    Lane `3 * stage + row` is a row of a stage. Its bars begin at index `first[lane]`.
    """
    bars = Bars.of(result)
    lanes = NUM_ROWS * bars.stage + bars.row
    order = np.lexsort((bars.start_s, lanes))
    bars, lanes = bars.where(order), lanes[order]
    first = np.searchsorted(lanes, np.arange(NUM_ROWS * result.num_stages + 1))
    types = {"activity": "u1", "chunk": "i2", "microbatch": "i4", "start_s": "f8", "end_s": "f8"}
    return {
        "num_stages": result.num_stages,
        "activities": list(ACTIVITIES),
        "first": first.tolist(),
        "columns": {
            name: packed(getattr(bars, name).astype(dtype)) for name, dtype in types.items()
        },
    }


def memory_data(result: Result) -> dict[str, Any]:
    """Return the memory of all stages over time. A stage's values begin at index `first[stage]`."""
    curves = [result.memory_curve(stage) for stage in range(result.num_stages)]
    lengths = [len(curve.times_s) for curve in curves]
    times_s = np.concatenate([np.array(curve.times_s) for curve in curves])
    held_bytes = np.concatenate([np.array(curve.held_bytes, np.float64) for curve in curves])
    return {
        "first": [0, *np.cumsum(lengths).tolist()],
        "columns": {"time_s": packed(times_s), "held_bytes": packed(held_bytes)},
    }
