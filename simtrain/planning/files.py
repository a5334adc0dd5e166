"""Scenario files of the layouts of a plan."""

from __future__ import annotations

import re
from pathlib import Path

from simtrain.planning.result import TrainingPlan
from simtrain.scenario import Scenario
from simtrain.search.files import CandidateFile, write_files
from simtrain.units import format_bytes, format_seconds


def write_plan(plan: TrainingPlan, base: Scenario, folder: Path) -> list[Path]:
    """Write a scenario file for each row with a layout, named after its cluster and GPUs.

    Args:
        plan: the plan.
        base: the scenario that was planned from; its file is not overwritten.
        folder: folder of the files.

    Raises:
        InputError: the folder cannot be written to, or a file would overwrite the base (E113).
    """
    files = []
    for row in plan.rows:
        if row.best is None:
            continue
        parts = base.name or "scenario", Path(row.cluster).stem, f"{row.num_gpus}gpus"
        name = re.sub(r"[^\w.-]+", "_", "_".join(parts))
        time_s, peak_bytes = row.best.run.iteration_time_s, row.best.evaluation.peak_bytes
        description = (
            f"fastest layout on {row.num_gpus} GPUs: {format_seconds(time_s)} per iteration, "
            f"peak memory {format_bytes(peak_bytes)}"
        )
        files.append(CandidateFile(name, description, row.best))
    return write_files(base, folder, files)
