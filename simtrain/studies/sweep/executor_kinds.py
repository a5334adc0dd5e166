"""Where a sweep can be computed, by the name that `--executor` takes.

Shards of a Slurm array need no executor of their own: each is a run with `--shard i/n`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Protocol

from simtrain.studies.sweep.executors import Processes
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.ray_executor import RayCluster


class ExecutorKind(Protocol):
    """A place that computes the parts of a sweep."""

    def open(
        self, plan: SweepPlan, num_parts: int, workers: int | None, address: str | None
    ) -> tuple[Callable[[], Executor], int]:
        """Return a factory of executors, and the number of parts to submit at a time.

        Args:
            plan: the sweep.
            num_parts: parts that this run computes.
            workers: parts that run at the same time; None takes every processor.
            address: host:port of the cluster, if the user gave one.

        Raises:
            InputError: the address is missing or has no effect (E854), or nothing answers there.
        """


EXECUTOR_KINDS: Mapping[str, ExecutorKind] = {"processes": Processes(), "ray": RayCluster()}
