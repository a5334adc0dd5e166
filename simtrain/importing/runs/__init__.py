"""Read measured iterations: tables of runs in CSV, and logs of Megatron-LM."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path

from simtrain.base.resources import find_profile
from simtrain.importing.runs.megatron_log import is_log, read_log
from simtrain.importing.runs.table import TableRuns, read_table
from simtrain.studies.validation.measured import MeasuredRun, RunSettings

__all__ = ["MeasuredRun", "RunSettings", "Runs", "read_runs"]


class Runs:
    """The runs of several files; those of tables are made when they are reached."""

    def __init__(self, sources: Iterable[Collection[MeasuredRun] | TableRuns]) -> None:
        self._sources = [*sources]

    def __len__(self) -> int:
        return sum(map(len, self._sources))

    def __iter__(self) -> Iterator[MeasuredRun]:
        return chain.from_iterable(self._sources)


def read_runs(files: Iterable[Path], settings: RunSettings) -> Runs:
    """Read the runs of all files: a table has one a line, a log of Megatron-LM is one.

    Raises:
        InputError: a file cannot be read as either, or there is no such profile.
    """
    find_profile(settings.cluster)
    return Runs(
        [read_log(file, settings)] if is_log(file) else read_table(file, settings) for file in files
    )
