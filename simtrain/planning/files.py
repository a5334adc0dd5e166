"""The layouts of a plan, as scenario files to run."""

from __future__ import annotations

import re
from pathlib import Path

from simtrain.planning.result import TrainingPlan
from simtrain.scenario import Scenario
from simtrain.search.files import CandidateFile, write_files
from simtrain.units import format_bytes, format_seconds


def write_plan(plan: TrainingPlan, base: Scenario, folder: Path) -> list[Path]:
    """Write a scenario for each row that has a layout, named after its cluster and GPUs.

    Raises:
        InputError: the folder cannot be written to, or has the base under such a name.
    """
    files = []
    for row in plan.rows:
        if row.found is None:
            continue
        parts = base.name or "scenario", Path(row.cluster).stem, f"{row.num_gpus}gpus"
        name = re.sub(r"[^\w.-]+", "_", "_".join(parts))
        time, peak = row.found.run.iteration_time_s, row.found.evaluation.peak_bytes
        description = (
            f"fastest layout on {row.num_gpus} GPUs: {format_seconds(time)}, "
            f"{format_bytes(peak)} at its peak"
        )
        files.append(CandidateFile(name, description, row.found))
    return write_files(base, folder, files)
