"""The machines of a training and their failures, in nodes and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.studies.goodput.storage import SharedStorage

PLANNED = "planned stops"


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason for which a training stops.

    Args:
        name: the kind of failures.
        per_s: failures of the whole training per second.
        detection_s: time until the failure is known.
        diagnosis_s: time until the node that leaves is known.
        repair_s: mean time until the node is back; 0 if no node leaves.
        is_planned: a checkpoint is written before the training stops.
    """

    name: str
    per_s: float
    detection_s: float = 0.0
    diagnosis_s: float = 0.0
    repair_s: float = 0.0
    is_planned: bool = False


@dataclass(frozen=True, slots=True)
class Corruption:
    """Silent corruption: events of the whole training per second, and mean seconds until found."""

    per_s: float
    discovery_s: float
    repair_s: float


@dataclass(frozen=True, slots=True)
class Slowness:
    """Nodes that become slow: events per second, the slowdown, and mean seconds until found."""

    per_s: float
    slowdown: float
    discovery_s: float
    repair_s: float


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How a training saves its state.

    Args:
        interval_s: iterations between two checkpoints, in seconds of work.
        blocking_s: time for which a checkpoint stops the training.
        write_s: mean time from then on until the checkpoint can be loaded.
    """

    interval_s: float
    blocking_s: float
    write_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """A training, its machines and how they recover.

    Args:
        num_nodes: nodes that the training uses.
        num_replicas: replicas of the model on them.
        spares: nodes that wait to replace others.
        causes: reasons for which it stops.
        checkpoint: how it saves its state.
        restart_s: from the end of a diagnosis to the next iteration, once enough nodes are there:
            the mean of a start that succeeds.
        restart_fails: probability that a start fails of itself, and is tried again.
        load_s: part of `restart_s` that reads a shared storage, if it had the storage alone.
        storage: a storage that other jobs share; None for one of its own.
        reconfiguration_s: with recovery by replica, time for which the other replicas wait; None if
            a failure stops all replicas until the restart.
        shrinks: whether a training without a spare goes on with fewer replicas.
        corruption, slowness: None if they do not happen.
    """

    num_nodes: int
    num_replicas: int
    spares: int
    causes: tuple[Cause, ...]
    checkpoint: Checkpointing
    restart_s: float
    reconfiguration_s: float | None = None
    shrinks: bool = False
    corruption: Corruption | None = None
    slowness: Slowness | None = None
    restart_fails: float = 0.0
    load_s: float = 0.0
    storage: SharedStorage | None = None

    @property
    def failures_per_s(self) -> float:
        """Unplanned failures of the whole training per second, silent corruption among them."""
        of_corruption = self.corruption.per_s if self.corruption else 0.0
        return math.fsum((*(each.per_s for each in self.failures()), of_corruption))

    @property
    def smallest_unit(self) -> tuple[int, int]:
        """Replicas, and the nodes that hold them: the least of which both are whole numbers."""
        return (
            max(1, self.num_replicas // self.num_nodes),
            max(1, math.ceil(self.num_nodes / self.num_replicas)),
        )

    def failures(self) -> Iterator[Cause]:
        """Yield the causes that are not planned."""
        return (cause for cause in self.causes if not cause.is_planned)
