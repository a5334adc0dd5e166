"""Compare measured iterations with simulated ones: tables of runs in CSV, logs of Megatron-LM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from simtrain.base.output_folder import as_path
from simtrain.base.resources import find_profile
from simtrain.errors import InputError
from simtrain.hardware.evidence import usual_stack
from simtrain.importing.runs.megatron import is_log, read_log
from simtrain.importing.runs.table import read_table
from simtrain.scenario.load import check_overrides
from simtrain.studies.validation import Validation, validate_runs
from simtrain.studies.validation.measured import MeasuredRun, Runs, RunSettings

__all__ = ["MeasuredRun", "RunSettings", "read_runs", "validate"]


def read_runs(files: Iterable[Path], settings: RunSettings) -> Runs:
    """Read the runs of all files: a table has one a line, a log of Megatron-LM is one.

    Raises:
        InputError: a file cannot be read as either, or there is no such profile.
    """
    find_profile(settings.cluster)
    return Runs(
        [read_log(file, settings)] if is_log(file) else read_table(file, settings) for file in files
    )


def validate(
    files: str | Path | Sequence[str | Path],
    cluster: str,
    software: str | None = None,
    overrides: Sequence[str] = (),
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Simulate measured runs and compare times, memory, and what fits.

    Args:
        files: tables of runs (CSV), or logs of Megatron-LM with their arguments.
        cluster: hardware profile of the machine that was measured.
        software: software stack of runs whose table has no column for it; by default the one with
            which the machine's profile was compared first.
        overrides: fields to set in every run, such as "overlap.data_parallel=true".
        on_progress: receives how many of how many runs are done.

    Raises:
        InputError: a file cannot be read, there is no such profile, or an argument is invalid.
    """
    check_overrides(overrides)
    for name, value in {"cluster": cluster, "software": software}.items():
        if not isinstance(value, str) and (name == "cluster" or value is not None):
            fix = f"write the name of a {'profile' if name == 'cluster' else 'software stack'}"
            raise InputError.of("E114", f"{name} is {value!r:.80}, not a text", fix=fix)
    listed = (
        files if isinstance(files, Sequence) and not isinstance(files, str | bytes) else [files]
    )
    paths = [as_path(file) for file in listed]
    settings = RunSettings(cluster, software, tuple(overrides), usual_stack(cluster))
    return validate_runs(read_runs(paths, settings), cluster, on_progress)
