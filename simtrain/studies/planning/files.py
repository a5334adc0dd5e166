"""Scenario files of the layouts of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simtrain.scenario import Scenario
from simtrain.studies.planning.result import TrainingPlan
from simtrain.studies.search.explorer import Candidate
from simtrain.studies.search.scenario_files import CandidateFile, file_name, write_files
from simtrain.units import counted, format_bytes, format_seconds


def write_plan(plan: TrainingPlan, base: Scenario, folder: Path) -> list[Path]:
    """Write a scenario file for each row with a layout, named after its cluster and GPUs.

    Files of an older plan are replaced, the file of the `base` is not: see `write_files`.
    """
    rows = [row for row in plan.rows if row.best is not None]
    names = names_of_rows(base, [(row.cluster, row.num_gpus) for row in rows])
    files = [
        CandidateFile(name, _description(row.num_gpus, row.best), row.best)
        for name, row in zip(names, rows, strict=True)
        if row.best is not None
    ]
    return write_files(base, "plan", folder, files)


def names_of_rows(base: Scenario, rows: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names of the files of rows, given as (cluster, GPUs), without ".yaml"."""
    clusters = {cluster for cluster, _ in rows}
    stems = {cluster: Path(cluster).stem for cluster in clusters}
    if len(set(stems.values())) < len(clusters):
        stems = {cluster: cluster for cluster in clusters}
    start = base.name or "scenario"
    return [file_name(f"{start}_{stems[cluster]}_{num_gpus}gpus") for cluster, num_gpus in rows]


def _description(num_gpus: int, best: Candidate) -> str:
    time_s, peak_bytes = best.run.iteration_time_s, best.evaluation.peak_bytes
    return (
        f"fastest layout on {counted(num_gpus, 'GPU')}: {format_seconds(time_s)} per iteration, "
        f"peak memory {format_bytes(peak_bytes)}"
    )
