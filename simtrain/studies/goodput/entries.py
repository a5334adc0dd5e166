"""From the entries of a profile to the fleet of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simtrain.errors import InputError, Location
from simtrain.hardware.entries import entries_of
from simtrain.hardware.load import STAND_IN, load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.reliability import Reliability
from simtrain.studies.goodput.closed_forms import best_interval_s, spares_for
from simtrain.studies.goodput.fleet import (
    PLANNED,
    Cause,
    Checkpointing,
    Corruption,
    Fleet,
    Slowness,
)
from simtrain.studies.goodput.storage import SharedStorage
from simtrain.studies.goodput_request import CheckpointMode
from simtrain.units import DAY_S

_MOST_LOAD = 0.99
"""Of a storage and of failed starts: an entry is doubled to find what the answer hangs on."""


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """What of a training decides its fleet, besides the entries of a profile.

    Args:
        num_gpus: GPUs of the training.
        gpus_per_node: of its cluster.
        num_replicas: replicas of the model.
        num_parameters: of the model.
        iteration_time_s: time of an iteration.
        network_bytes_per_s: of all nodes together.
        checkpoint: how checkpoints are written.
        interval_s: time between them; None for the best one.
        by_replica: whether a failure stops one replica only.
        shrinks: whether a training without a spare goes on with fewer replicas.
        spares: nodes that wait; None for as many as are needed 95 % of the time.
    """

    num_gpus: int
    gpus_per_node: int
    num_replicas: int
    num_parameters: int
    iteration_time_s: float
    network_bytes_per_s: float = math.inf
    checkpoint: CheckpointMode = "async"
    interval_s: float | None = None
    by_replica: bool = False
    shrinks: bool = False
    spares: int | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes that the training uses."""
        return math.ceil(self.num_gpus / self.gpus_per_node)


def failures_of(profile: HardwareProfile, name: str | None = None) -> tuple[str, Reliability]:
    """Return the name of the profile whose failures count, and its failures.

    Args:
        profile: of the iteration; h100_sxm stands in if it has no failures.
        name: another profile, whose failures count in any case.

    Raises:
        InputError: the other profile has no failures (E889).
    """
    if name is None or name == profile.name:
        if profile.reliability is not None:
            return profile.name, profile.reliability
        name = STAND_IN
    reliability = load_profile(name).reliability
    if reliability is None:
        raise InputError.of(
            "E889",
            f"{name} has no section reliability",
            Location(f"--reliability {name}"),
            fix=f"write --reliability {STAND_IN}, or add the section to the profile",
            reason="how often machines fail is not known otherwise",
        )
    return name, reliability


def fleet_of(facts: TrainingFacts, reliability: Reliability) -> Fleet:
    """Return the fleet of a training."""
    per_s = facts.num_gpus / DAY_S
    causes = (
        *(
            Cause(
                name=name,
                per_s=kind.per_gpu_day.value * per_s,
                detection_s=kind.detection.value,
                diagnosis_s=kind.diagnosis.value,
                repair_s=kind.repair.value if kind.repair else 0.0,
            )
            for name, kind in (
                ("gpu", reliability.gpu),
                ("network", reliability.network),
                ("host", reliability.host),
                ("software", reliability.software),
            )
        ),
        Cause(PLANNED, reliability.planned.per_gpu_day.value * per_s, is_planned=True),
    )
    silent, slow = reliability.silent_corruption, reliability.slow_nodes
    corruption = silent and Corruption(
        silent.per_gpu_day.value * per_s, silent.discovery.value, silent.repair.value
    )
    slowness = slow and Slowness(
        slow.per_gpu_day.value * per_s,
        slow.slowdown.value,
        slow.discovery.value,
        slow.repair.value,
    )
    failures_per_s = math.fsum(cause.per_s for cause in causes if not cause.is_planned)
    failures_per_s += corruption.per_s if corruption else 0.0
    restart, storage = reliability.restart, _storage(facts, reliability)
    loading_s = load_s(facts, reliability)
    shared_s = storage.mean_s(loading_s) if storage else loading_s
    fails = restart.failure_probability
    return Fleet(
        num_nodes=facts.num_nodes,
        num_replicas=facts.num_replicas,
        spares=_spares(facts, causes) if facts.spares is None else facts.spares,
        causes=causes,
        checkpoint=_checkpointing(facts, reliability, failures_per_s),
        restart_s=restart.process_groups.value + shared_s + restart.warm_up.value,
        reconfiguration_s=restart.reconfiguration.value if facts.by_replica else None,
        shrinks=facts.shrinks,
        corruption=corruption or None,
        slowness=slowness or None,
        restart_fails=min(fails.value, _MOST_LOAD) if fails else 0.0,
        load_s=loading_s,
        storage=storage,
    )


def _storage(facts: TrainingFacts, reliability: Reliability) -> SharedStorage | None:
    """Return the storage that other jobs share; None if none do, or checkpoints stay in memory."""
    load, others = reliability.checkpoints.others_load, reliability.checkpoints.others_transfer
    if facts.checkpoint == "memory" or not load or not load.value or not others:
        return None
    return SharedStorage(min(load.value, _MOST_LOAD), others.value)


def write_s(facts: TrainingFacts, reliability: Reliability) -> float:
    """Return the time to write a checkpoint."""
    return _copy_s(facts, reliability, reliability.checkpoints.write_bandwidth.value)


def load_s(facts: TrainingFacts, reliability: Reliability) -> float:
    """Return the time to load a checkpoint."""
    return _copy_s(facts, reliability, reliability.checkpoints.read_bandwidth.value)


def _copy_s(facts: TrainingFacts, reliability: Reliability, storage_bytes_per_s: float) -> float:
    """Return the time to copy a checkpoint to or from the storage, or the memory of other nodes."""
    is_in_memory = facts.checkpoint == "memory"
    bytes_per_s = facts.network_bytes_per_s if is_in_memory else storage_bytes_per_s
    return _checkpoint_bytes(facts, reliability) / bytes_per_s


def _checkpoint_bytes(facts: TrainingFacts, reliability: Reliability) -> float:
    return facts.num_parameters * reliability.checkpoints.bytes_per_parameter.value


def _checkpointing(
    facts: TrainingFacts, reliability: Reliability, failures_per_s: float
) -> Checkpointing:
    writes_s, storage = write_s(facts, reliability), _storage(facts, reliability)
    writes_s = storage.mean_s(writes_s) if storage else writes_s
    is_blocking = facts.checkpoint == "blocking"
    blocking_s = writes_s if is_blocking else reliability.checkpoints.snapshot.value
    interval_s = facts.interval_s
    if interval_s is None:
        best_s = best_interval_s(blocking_s, failures_per_s)
        # Without failures a day is as good as any interval.
        interval_s = max(min(best_s, DAY_S), writes_s, facts.iteration_time_s)
    return Checkpointing(interval_s, blocking_s, 0.0 if is_blocking else writes_s)


def _spares(facts: TrainingFacts, causes: tuple[Cause, ...]) -> int:
    """Return the spares with which all nodes are there with a probability of 95 %."""
    down = math.fsum(cause.per_s * cause.repair_s for cause in causes) / facts.num_nodes
    return spares_for(facts.num_nodes, 1 / (1 + down))


def entry_names(reliability: Reliability) -> list[str]:
    """Return the names of the entries."""
    return [name for name, _ in entries_of(reliability)]
