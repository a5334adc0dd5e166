"""The machines of a training: how often they fail, how they recover, what checkpoints take.

A fleet follows from facts of the training and from the entries of a profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simtrain.errors import InputError, Location
from simtrain.hardware.load import STAND_IN, load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.sections import Reliability
from simtrain.studies.goodput.closed_forms import best_interval_s, spares_for
from simtrain.studies.training_requests import CheckpointMode
from simtrain.units import DAY_S

PLANNED = "planned stops"


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason for which a training stops, with its stops per second of work.

    A detection and a diagnosis find the node that leaves; `repair_s` is the mean time until it is
    back, 0 if none leaves. Before a planned stop a checkpoint is written.
    """

    name: str
    per_s: float
    detection_s: float = 0.0
    diagnosis_s: float = 0.0
    repair_s: float = 0.0
    is_planned: bool = False

    @property
    def found_s(self) -> float:
        """Time until the node that leaves is known."""
        return self.detection_s + self.diagnosis_s


@dataclass(frozen=True, slots=True)
class Corruption:
    """Silent corruption: events of the whole training per second, and mean seconds until found."""

    per_s: float
    discovery_s: float
    repair_s: float


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How a training saves its state: after `interval_s` of work, it stops for `blocking_s`.

    The checkpoint can be loaded `write_s` later, which is at most an interval.
    """

    interval_s: float
    blocking_s: float
    write_s: float = 0.0

    @property
    def loadable_s(self) -> float:
        """Time from the start of a checkpoint until it can be loaded."""
        return self.blocking_s + self.write_s


@dataclass(frozen=True, slots=True)
class Fleet:
    """A training, its machines and how they recover.

    Args:
        num_nodes, num_replicas: of the training.
        spares: nodes that wait to replace others.
        causes: reasons for which it stops.
        checkpoint: how it saves its state.
        restart_s: from the end of a diagnosis to the next iteration, once enough nodes are there.
        reconfiguration_s: with recovery by replica, time for which the other replicas wait; None if
            a failure stops all replicas until the restart.
        corruption: None if it does not happen.
    """

    num_nodes: int
    num_replicas: int
    spares: int
    causes: tuple[Cause, ...]
    checkpoint: Checkpointing
    restart_s: float
    reconfiguration_s: float | None = None
    corruption: Corruption | None = None

    @property
    def failures(self) -> tuple[Cause, ...]:
        """The causes that are not planned."""
        return tuple(cause for cause in self.causes if not cause.is_planned)

    @property
    def failures_per_s(self) -> float:
        """Unplanned failures of the whole training per second, silent corruption among them."""
        of_corruption = self.corruption.per_s if self.corruption else 0.0
        return math.fsum((*(each.per_s for each in self.failures), of_corruption))

    @property
    def events_per_s(self) -> float:
        """All that happens to the training per second of work."""
        planned = math.fsum(cause.per_s for cause in self.causes if cause.is_planned)
        return self.failures_per_s + planned


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """What of a training decides its fleet, besides the entries of a profile.

    Args:
        num_gpus, gpus_per_node, num_replicas: of the training.
        num_parameters: of the model.
        iteration_time_s: time of an iteration.
        network_bytes_per_s: of all nodes together.
        checkpoint: how checkpoints are written.
        interval_s: time between them; None for the best one.
        by_replica: whether a failure stops one replica only.
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
    spares: int | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes that the training uses."""
        return math.ceil(self.num_gpus / self.gpus_per_node)


def failures_of(profile: HardwareProfile, name: str | None = None) -> tuple[str, Reliability]:
    """Return the name of the profile whose failures count, and its failures.

    They are those of a named profile (E889 if it has none), or of the profile of the iteration;
    h100_sxm stands in for one without failures.
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
    causes = tuple(
        Cause(
            name=name,
            per_s=kind.per_gpu_day.value * per_s,
            detection_s=kind.detection.value,
            diagnosis_s=kind.diagnosis.value,
            repair_s=kind.repair.value if kind.repair else 0.0,
        )
        for name in ("gpu", "network", "host", "software")
        for kind in [getattr(reliability, name)]
    )
    planned = Cause(PLANNED, reliability.planned.per_gpu_day.value * per_s, is_planned=True)
    corruption, silent = None, reliability.silent_corruption
    if silent:
        rate = silent.per_gpu_day.value * per_s
        corruption = Corruption(rate, silent.discovery.value, silent.repair.value)
    failures_per_s = math.fsum(cause.per_s for cause in causes)
    failures_per_s += corruption.per_s if corruption else 0.0
    restart, read = reliability.restart, reliability.checkpoints.read_bandwidth.value
    loading_s = _copy_s(facts, reliability, read)
    return Fleet(
        num_nodes=facts.num_nodes,
        num_replicas=facts.num_replicas,
        spares=_spares(facts, causes) if facts.spares is None else facts.spares,
        causes=(*causes, planned),
        checkpoint=_checkpointing(facts, reliability, failures_per_s),
        restart_s=restart.process_groups.value + loading_s + restart.warm_up.value,
        reconfiguration_s=restart.reconfiguration.value if facts.by_replica else None,
        corruption=corruption,
    )


def _copy_s(facts: TrainingFacts, reliability: Reliability, storage_bytes_per_s: float) -> float:
    """Return the time to copy a checkpoint to or from the storage, or the memory of other nodes."""
    in_memory = facts.checkpoint == "memory"
    copied = facts.num_parameters * reliability.checkpoints.bytes_per_parameter.value
    return copied / (facts.network_bytes_per_s if in_memory else storage_bytes_per_s)


def _checkpointing(
    facts: TrainingFacts, reliability: Reliability, failures_per_s: float
) -> Checkpointing:
    write_s = _copy_s(facts, reliability, reliability.checkpoints.write_bandwidth.value)
    is_blocking = facts.checkpoint == "blocking"
    blocking_s = write_s if is_blocking else reliability.checkpoints.snapshot.value
    interval_s = facts.interval_s
    if interval_s is None:
        best_s = best_interval_s(blocking_s, failures_per_s)
        # Without failures a day is as good as any interval.
        interval_s = max(min(best_s, DAY_S), write_s, facts.iteration_time_s)
    return Checkpointing(interval_s, blocking_s, 0.0 if is_blocking else write_s)


def _spares(facts: TrainingFacts, causes: tuple[Cause, ...]) -> int:
    """Return the spares with which all nodes are there with a probability of 95 %."""
    down = math.fsum(cause.per_s * cause.repair_s for cause in causes) / facts.num_nodes
    return spares_for(facts.num_nodes, 1 / (1 + down))
