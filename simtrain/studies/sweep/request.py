"""What a sweep is asked for.

Help of commands reads the request: the module imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from simtrain.errors import InputError

if TYPE_CHECKING:
    from simtrain.studies.sweep.run import Progress

MANY_POINTS = 1_000_000
"""Points of a grid that a sweep starts on unless a larger number is allowed."""
ExecutorName = Literal["processes", "slurm", "ray"]


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What a sweep is asked for.

    Args:
        sweep: a sweep file, the name of a shipped sweep, or what such a file contains:
            {"base": "gpt2_1_5b", "axes": {"batch.micro": [1, 2, 4]}}. The base may be a scenario.
        out: folder for the results, which `query` reads too. None keeps only the rows.
        overrides: overrides of the base scenarios, such as "model.seq_length=4096".
        workers: processes, or concurrent parts on a Ray cluster; with 1 this process computes
            everything, and None takes one per processor. A script with several workers needs
            `if __name__ == "__main__":`, because workers import it.
        executor: compute in local processes, as a task of a Slurm array, or on a Ray cluster.
        address: Ray cluster, host:port. Default: $RAY_ADDRESS.
        shard: compute only every n-th part, starting at part i (from 0): i/n.
        part_size: points per part.
        max_points: refuse a grid of more points, which would run for days.
        on_progress: called after each part.
    """

    sweep: str | Path | Mapping[str, Any]
    out: str | Path | None = None
    overrides: Sequence[str] = ()
    _: KW_ONLY
    workers: int | None = 1
    executor: ExecutorName = "processes"
    address: str | None = None
    shard: str = "0/1"
    part_size: int | None = None
    max_points: int = MANY_POINTS
    on_progress: Callable[[Progress], None] = lambda progress: None

    def check(self) -> None:
        """Refuse numbers below 1 and an unknown executor (E834)."""
        if self.executor not in get_args(ExecutorName):
            fix = f"write one of {', '.join(get_args(ExecutorName))}"
            raise InputError.of("E834", f"executor is {self.executor!r}", fix=fix)
        counts = {"workers": self.workers, "part_size": self.part_size}
        counts = {name: count for name, count in counts.items() if count is not None}
        for name, count in (counts | {"max_points": self.max_points}).items():
            if type(count) is not int or count < 1:
                fix = "write a whole number of at least 1"
                raise InputError.of("E834", f"{name} is {count!r}", fix=fix)
