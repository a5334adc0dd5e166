"""A Slurm array: each of its tasks computes a share of the parts with processes on its node."""

from __future__ import annotations

import os

from simtrain.errors import InputError, Location
from simtrain.studies.sweep.executors import Processes
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.workers import PartWorkers, Shard

_PLACE = Location("--executor slurm")
_FIX = "submit a script with sbatch --array=0-7, or write --shard i/n"


class SlurmArray:
    """The array that this process is a task of."""

    def open(
        self, plan: SweepPlan, shard: Shard, num_workers: int | None, address: str | None
    ) -> PartWorkers:
        """Return the processors of the task; its number in the array is its shard."""
        if shard != Shard():
            message, place = "a task's number in the array is its shard", Location("--shard")
            raise InputError.of("E854", message, place, "remove --shard")
        # sbatch --cpus-per-task sets it; without, Slurm binds the task to its processors.
        num_workers = num_workers or int(os.environ.get("SLURM_CPUS_PER_TASK") or 0) or None
        return Processes().open(plan, shard_of_task(), num_workers, address)


def shard_of_task() -> Shard:
    """Return the shard of this task.

    Raises:
        InputError: this process is no task of an array whose numbers are without gaps (E854).
    """
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "COUNT")]
    if missing := [name for name in names if not os.environ.get(name, "").isdecimal()]:
        message = f"this is no task of a Slurm array: {missing[0]} is not set"
        raise InputError.of("E854", message, _PLACE, _FIX)
    number, first, count = (int(os.environ[name]) for name in names)
    if number - first >= count:
        message = f"task {number} is beyond an array of {count} tasks from {first} on without gaps"
        raise InputError.of("E854", message, _PLACE, _FIX)
    return Shard(number - first, count)
