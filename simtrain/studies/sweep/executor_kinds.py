"""Where a sweep can be computed, by the name that `--executor` takes."""

from __future__ import annotations

from collections.abc import Mapping

from simtrain.studies.sweep.executors import Processes
from simtrain.studies.sweep.ray_executor import RayCluster
from simtrain.studies.sweep.slurm_array import SlurmArray
from simtrain.studies.sweep.workers import ExecutorKind

EXECUTOR_KINDS: Mapping[str, ExecutorKind] = {
    "processes": Processes(),
    "slurm": SlurmArray(),
    "ray": RayCluster(),
}
