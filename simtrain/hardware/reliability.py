"""How often machines of a cluster fail, and how long it takes until a training goes on.

Rates are per GPU and day, so that nodes of any size can use them. A profile without these entries
takes those of another one (`simtrain goodput --reliability`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simtrain.base.entry import Entry, NonNegative, Positive, Strict
from simtrain.units import BytesPerSecond, NonNegativeSeconds, Seconds


class Failures(Strict):
    """Failures of one kind, which stop a training.

    Args:
        per_gpu_day: failures per GPU and day.
        detection: time until the training is known to have failed.
        diagnosis: time until the node that has to leave is known.
        repair: mean time until a node that left is back among the spares; without it, failures of
            this kind keep their nodes.
    """

    per_gpu_day: Entry[NonNegative]
    detection: Entry[NonNegativeSeconds]
    diagnosis: Entry[NonNegativeSeconds]
    repair: Entry[Seconds] | None = None


class PlannedStops(Strict):
    """Interruptions for which a checkpoint is written first, such as maintenance."""

    per_gpu_day: Entry[NonNegative]


class SilentCorruption(Strict):
    """Wrong results of a GPU, which are found late.

    Args:
        per_gpu_day: corruptions per GPU and day.
        discovery: mean time until one is found; the training then goes back to the last checkpoint
            before it.
        repair: mean time until the node is back among the spares.
    """

    per_gpu_day: Entry[NonNegative]
    discovery: Entry[Seconds]
    repair: Entry[Seconds]


class SlowNodes(Strict):
    """Nodes that become slow, and slow the whole training down until they are found.

    Args:
        per_gpu_day: nodes that become slow, per GPU and day.
        slowdown: time of an iteration with one of them, relative to one without.
        discovery: mean time until it is found; it is then replaced after a checkpoint.
        repair: mean time until the node is back among the spares.
    """

    per_gpu_day: Entry[NonNegative]
    slowdown: Entry[Annotated[float, Field(ge=1)]]
    discovery: Entry[Seconds]
    repair: Entry[Seconds]


class Checkpoints(Strict):
    """What checkpoints of a training take.

    Args:
        bytes_per_parameter: bytes of a checkpoint for each parameter of the model.
        snapshot: time for which an asynchronous checkpoint stops the training.
        write_bandwidth, read_bandwidth: of the storage, for the whole training.
    """

    bytes_per_parameter: Entry[Positive]
    snapshot: Entry[NonNegativeSeconds]
    write_bandwidth: Entry[BytesPerSecond]
    read_bandwidth: Entry[BytesPerSecond]


class Restart(Strict):
    """What a training does between the end of a diagnosis and its next iteration, but for loading.

    Args:
        process_groups: start of the processes and their groups.
        warm_up: the additional time of the first iterations.
        reconfiguration: with recovery by replica, time for which all other replicas wait.
    """

    process_groups: Entry[NonNegativeSeconds]
    warm_up: Entry[NonNegativeSeconds]
    reconfiguration: Entry[NonNegativeSeconds]


class Reliability(Strict):
    """Failures of a cluster by kind, and the times that recovery takes.

    Args:
        gpu: GPUs, their memory and links inside a node.
        network: adapters, cables and switches.
        host: everything else in a node.
        software: the program itself; nodes stay.
        planned: interruptions that are planned.
        silent_corruption: wrong results; without it, none.
        slow_nodes: nodes that become slow; without it, none.
        restart: starting again.
        checkpoints: what checkpoints take.
    """

    gpu: Failures
    network: Failures
    host: Failures
    software: Failures
    planned: PlannedStops
    silent_corruption: SilentCorruption | None = None
    slow_nodes: SlowNodes | None = None
    restart: Restart
    checkpoints: Checkpoints
