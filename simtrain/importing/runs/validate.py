"""Compare measured runs with simulated ones from Python, as `simtrain validate` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from simtrain.base.output_folder import as_path
from simtrain.errors import InputError
from simtrain.hardware.validated_on import usual_stack
from simtrain.importing.runs import RunSettings, read_runs
from simtrain.scenario.load import check_overrides
from simtrain.studies.validation import Validation, validate_runs


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
