"""The machines of a training: how often they fail, how they recover, what checkpoints take.

A fleet follows from facts of the training and from the entries of a profile. Closed forms of its
goodput stand beside the simulation: Young 1974, Daly 2006 and Kokolis et al. 2024 (arXiv
2410.21680) for checkpoints and failures, binomial availability for spares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simtrain.hardware.load import STAND_IN, load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.sections import Reliability
from simtrain.studies.training_requests import CheckpointMode
from simtrain.units import DAY_S

PLANNED = "planned stops"
_MOST_EXPONENT = 600.0
"""Larger exponents overflow; what they stand for never ends anyway."""


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
        restart_s: from the end of a diagnosis to the next iteration, once enough nodes are there.
        corruption: None if it does not happen.
    """

    num_nodes: int
    spares: int
    causes: tuple[Cause, ...]
    checkpoint: Checkpointing
    restart_s: float
    corruption: Corruption | None = None

    @property
    def failures(self) -> tuple[Cause, ...]:
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
        interval_s: time between them; None for the best one.
        spares: nodes that wait; None for as many as are needed 95 % of the time.
    """

    num_gpus: int
    gpus_per_node: int
    num_parameters: int
    iteration_time_s: float
    checkpoint: CheckpointMode = "async"
    interval_s: float | None = None
    spares: int | None = None

    @property
    def num_nodes(self) -> int:
        return math.ceil(self.num_gpus / self.gpus_per_node)


def failures_of(profile: HardwareProfile) -> tuple[str, Reliability]:
    """Return the name of the profile whose failures count, and its failures.

    h100_sxm stands in for a profile without failures.
    """
    if profile.reliability is not None:
        return profile.name, profile.reliability
    reliability = load_profile(STAND_IN).reliability
    assert reliability is not None, "the profile that stands in has failures"
    return STAND_IN, reliability


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
        spares=_spares(facts, causes) if facts.spares is None else facts.spares,
        causes=(*causes, planned),
        checkpoint=_checkpointing(facts, reliability, failures_per_s),
        restart_s=restart.process_groups.value + loading_s + restart.warm_up.value,
        corruption=corruption,
    )


def _copy_s(facts: TrainingFacts, reliability: Reliability, storage_bytes_per_s: float) -> float:
    """Return the time to copy a checkpoint to or from the storage."""
    copied = facts.num_parameters * reliability.checkpoints.bytes_per_parameter.value
    return copied / storage_bytes_per_s


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


# -------------------------------------------------------------------------- closed forms


def best_interval_s(blocking_s: float, failures_per_s: float) -> float:
    """Return the interval between checkpoints that loses least to first order: sqrt(2 w / rate).

    Infinite without failures.
    """
    return math.sqrt(2 * blocking_s / failures_per_s) if failures_per_s else math.inf


def recovery_s(found_s: float, restart_s: float, failures_per_s: float) -> float:
    """Return the mean time from a failure to the next iteration, if restarts can fail too.

    Daly 2006: (1 / rate + D)(exp(rate R) - 1), after the first D.

    Args:
        found_s: time D to find a failure.
        restart_s: time R of a start that succeeds.
        failures_per_s: rate of failures, which go on during a start.
    """
    load = min(failures_per_s * restart_s, _MOST_EXPONENT)
    if not load:
        return found_s + restart_s
    return found_s + (1 / failures_per_s + found_s) * math.expm1(load)


def hours_lost_per_hour(fleet: Fleet) -> dict[str, float]:
    """Return the hours that each cause costs per hour of iterations, to first order in the rates.

    A failure costs the time u to the next iteration, half an interval, and the rest of a write,
    which an asynchronous checkpoint loses too. Silent corruption also loses the time until it is
    found. Waiting for nodes is left out.
    """
    each, failures = fleet.checkpoint, fleet.failures
    lost_s = each.interval_s / 2 + each.write_s
    per_s = math.fsum(cause.per_s for cause in failures)
    found_s = math.fsum(cause.per_s * cause.found_s for cause in failures)
    found_s = found_s / per_s if per_s else 0.0
    restart_s = recovery_s(found_s, fleet.restart_s, per_s) - found_s
    hours = {}
    for cause in fleet.causes:
        if cause.is_planned:
            down_s = each.loadable_s + restart_s
        else:
            down_s = cause.found_s + restart_s + lost_s
        hours[cause.name] = cause.per_s * down_s
    if fleet.corruption:
        down_s = fleet.corruption.discovery_s + lost_s + restart_s
        hours["silent corruption"] = fleet.corruption.per_s * down_s
    return hours


def expected_ratio(fleet: Fleet) -> float:
    """Return the effective training time ratio to first order in the rates.

    Kokolis et al. 2024: (1 - sum of rate (u + interval / 2)) / (1 + w / interval).
    """
    lost = math.fsum(hours_lost_per_hour(fleet).values())
    each = fleet.checkpoint
    return max(0.0, 1 - lost) / (1 + each.blocking_s / each.interval_s)


def nodes_up(num_nodes: int, availability: float, confidence: float) -> int:
    """Return how many of `num_nodes` are up at least, with a probability of `confidence`.

    Exact: the largest k for which P[Binomial(num_nodes, availability) >= k] >= confidence.
    """
    tail = 0.0
    for up in range(num_nodes, -1, -1):
        log = math.lgamma(num_nodes + 1) - math.lgamma(up + 1) - math.lgamma(num_nodes - up + 1)
        if 0 < availability < 1:
            log += up * math.log(availability) + (num_nodes - up) * math.log1p(-availability)
            tail += math.exp(log)
        else:
            tail += float(up == (num_nodes if availability else 0))
        if tail >= confidence:
            return up
    return 0


def spares_for(num_nodes: int, availability: float, confidence: float = 0.95) -> int:
    """Return the spares with which `num_nodes` are up with a probability of `confidence`.

    At most as many as there are nodes: with more, something else is wrong.
    """
    spares = 0
    while spares < num_nodes:
        up = nodes_up(num_nodes + spares, availability, confidence)
        if up >= num_nodes:
            return spares
        spares += num_nodes - up
    return num_nodes
