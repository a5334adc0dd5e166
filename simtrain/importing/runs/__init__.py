"""Read measured iterations: tables of runs in CSV, and logs of Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from simtrain.base.resources import find_profile
from simtrain.importing.runs.measured import MeasuredRun, RunSettings
from simtrain.importing.runs.megatron_log import is_log, read_log
from simtrain.importing.runs.table import read_table

__all__ = ["MeasuredRun", "RunSettings", "read_runs"]


def read_runs(files: Iterable[Path], settings: RunSettings) -> list[MeasuredRun]:
    """Read the runs of all files: a table has one a line, a log of Megatron-LM is one.

    Raises:
        InputError: a file cannot be read as either, or there is no such profile.
    """
    find_profile(settings.cluster)
    runs: list[MeasuredRun] = []
    for file in files:
        runs += [read_log(file, settings)] if is_log(file) else read_table(file, settings)
    return runs
