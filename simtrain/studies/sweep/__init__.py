"""Sweeps: simulate every scenario of a grid. This file has what is asked; it imports nothing slow.

`grid` reads the sweep file, its names and conditions; `run` computes parts of the grid, keeps and
queries them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from simtrain.errors import InputError


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What a sweep is asked for.

    Args:
        sweep: a sweep file, the name of a shipped sweep, or what such a file contains:
            {"base": "gpt2_1_5b", "axes": {"batch.micro": [1, 2, 4]}}. The base may be a scenario.
            With `query`, a folder with results.
        out: folder for the results, to query later. None keeps only the rows.
        overrides: overrides of the base scenarios, such as "model.seq_length=4096".
        query: DuckDB SQL on the table `results` of a folder, in place of a run.
        workers: processes; with 1 this process computes everything, and None takes one per
            processor. A script with several workers needs `if __name__ == "__main__":`, because
            workers import it.
        on_progress: receives a phase, and how many of how many points are done.
    """

    sweep: str | Path | Mapping[str, Any]
    out: str | Path | None = None
    overrides: Sequence[str] = ()
    _: KW_ONLY
    query: str | None = None
    workers: int | None = 1
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None

    def check(self) -> None:
        """Refuse a number of workers below 1 (E834)."""
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            fix = "write a whole number of at least 1"
            raise InputError.of("E834", f"workers is {self.workers!r}", fix=fix)
