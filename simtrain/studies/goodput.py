"""One whole training as a simulation of its own: work, failures, repairs and restarts (SimPy).

The training is one process, and each node under repair another one. Times between failures are
exponential. A restart fails too if something fails before its end, and is tried again after the
same recovery. While a failure is found, and while the training waits, nothing fails.

Closed forms stand beside it: Young 1974, Daly 2006 and Kokolis et al. 2024 (arXiv 2410.21680) for
checkpoints and failures, binomial availability for spares.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from simtrain.base.values import dataclass, field
from simtrain.hardware.load import stand_in
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.sections import Reliability
from simtrain.studies.requests import CheckpointMode
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


def failures_of(profile: HardwareProfile) -> tuple[str, Reliability]:
    """Return the name of the profile whose failures count, and its failures.

    h100_sxm stands in for a profile without failures.
    """
    if profile.reliability is not None:
        return profile.name, profile.reliability
    reliability = stand_in().reliability
    assert reliability is not None, "the profile that stands in has failures"
    return stand_in().name, reliability


def fleet_of(
    reliability: Reliability,
    *,
    num_gpus: int,
    gpus_per_node: int,
    num_parameters: int,
    iteration_time_s: float,
    checkpoint: CheckpointMode = "async",
    interval_s: float | None = None,
    spares: int | None = None,
) -> Fleet:
    """Return the fleet of a training.

    Without an interval or spares, they are the best one, and as many as suffice 95 % of the time.
    """
    per_s, num_nodes = num_gpus / DAY_S, math.ceil(num_gpus / gpus_per_node)
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
    restart, checkpoints = reliability.restart, reliability.checkpoints
    state_bytes = num_parameters * checkpoints.bytes_per_parameter.value
    loading_s = state_bytes / checkpoints.read_bandwidth.value
    write_s = state_bytes / checkpoints.write_bandwidth.value
    is_blocking = checkpoint == "blocking"
    blocking_s = write_s if is_blocking else checkpoints.snapshot.value
    if interval_s is None:
        best_s = best_interval_s(blocking_s, failures_per_s)
        # Without failures a day is as good as any interval.
        interval_s = max(min(best_s, DAY_S), write_s, iteration_time_s)
    down = math.fsum(cause.per_s * cause.repair_s for cause in causes) / num_nodes
    return Fleet(
        num_nodes=num_nodes,
        spares=spares_for(num_nodes, 1 / (1 + down)) if spares is None else spares,
        causes=(*causes, planned),
        checkpoint=Checkpointing(interval_s, blocking_s, 0.0 if is_blocking else write_s),
        restart_s=restart.process_groups.value + loading_s + restart.warm_up.value,
        corruption=corruption,
    )


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


Steps = Generator[simpy.Event, Any, None]

WORK, LOST, SAVING = "work", "lost work", "checkpoints"
DETECTION, DIAGNOSIS, RESTART, WAITING = "detection", "diagnosis", "restart", "waiting for nodes"
HOURS = (WORK, LOST, SAVING, DETECTION, DIAGNOSIS, RESTART, WAITING)
"""What the time of a training goes to; the parts add up to it."""


@dataclass(slots=True)
class Training:
    """A training that was drawn; `planned` is how often it stopped for planned maintenance."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(HOURS, 0.0))
    interruptions: dict[str, int] = field(default_factory=dict)
    planned: int = 0

    @property
    def time_s(self) -> float:
        return math.fsum(self.seconds.values())

    @property
    def effective_ratio(self) -> float:
        """The share of the time that iterations take whose result is kept."""
        return self.seconds[WORK] / self.time_s

    @property
    def num_interruptions(self) -> int:
        return sum(self.interruptions.values())


def draw_training(
    fleet: Fleet, seed: np.random.SeedSequence, work_s: float, limit_s: float
) -> Training:
    """Draw one training until its work is done, or its time is over.

    Args:
        work_s: seconds of iterations without any failure; may be infinite.
        limit_s: seconds after which it ends anyway; may be infinite, but not both.
    """
    return _Run(fleet, np.random.default_rng(seed), work_s, limit_s).training


class SavedWork:
    """The position of a training in seconds of work, and its checkpoints.

    After each interval of work a checkpoint stops it; the state can be loaded after a write. A
    write takes no longer than an interval, so the checkpoint before the latest one can be loaded.
    """

    def __init__(self, checkpoint: Checkpointing) -> None:
        self.position_s = 0.0
        self._checkpoint = checkpoint
        self._since_s = 0.0  # work since the latest checkpoint began
        self._blocked_s = 0.0  # rest of a checkpoint's stop
        self._saved_s = 0.0  # position that can be loaded
        self._latest = (math.inf, 0.0)  # when the latest checkpoint can be loaded, its position

    def time_to(self, target_s: float) -> float:
        """Return the seconds until a position is reached, checkpoints on the way included."""
        left_s = target_s - self.position_s
        if math.isinf(left_s):
            return math.inf
        each = self._checkpoint
        # A checkpoint that would begin at the target itself is not written.
        stops = max(0, math.ceil((left_s + self._since_s) / each.interval_s) - 1)
        return self._blocked_s + left_s + stops * each.blocking_s

    def advance(self, now_s: float, elapsed_s: float) -> float:
        """Work for a time from now on; return the seconds for which checkpoints stopped it."""
        each = self._checkpoint
        stopped_s = min(self._blocked_s, elapsed_s)
        self._blocked_s -= stopped_s
        left_s, begin_s = elapsed_s - stopped_s, now_s + stopped_s
        to_first_s = each.interval_s - self._since_s
        if left_s < to_first_s or self._blocked_s > 0:
            self._since_s += left_s
            self.position_s += left_s
            return stopped_s
        # Checkpoints are counted, not walked through: the first, then `full` whole cycles.
        cycle_s = each.blocking_s + each.interval_s
        full, rest_s = divmod(left_s - to_first_s, cycle_s)
        last_s = self.position_s + each.interval_s - self._since_s + full * each.interval_s
        self._saved_s = max(self._saved_s, last_s - each.interval_s)
        self._latest = begin_s + to_first_s + full * cycle_s + each.loadable_s, last_s
        stop_s = min(rest_s, each.blocking_s)
        self._blocked_s = each.blocking_s - stop_s
        self._since_s = rest_s - stop_s
        self.position_s = last_s + self._since_s
        return stopped_s + full * each.blocking_s + stop_s

    def save(self) -> None:
        """Count everything so far as saved: a checkpoint was written while nothing else ran."""
        self.go_back(self.position_s)

    def saved_at(self, now_s: float) -> float:
        """Return the position of the newest checkpoint that can be loaded."""
        loadable_s, position_s = self._latest
        return position_s if loadable_s <= now_s else self._saved_s

    def go_back(self, position_s: float) -> float:
        """Load the checkpoint at a position; return the work that is lost."""
        lost_s = self.position_s - position_s
        self.position_s = self._saved_s = position_s
        self._since_s = self._blocked_s = 0.0
        self._latest = math.inf, position_s
        return lost_s


class _Run:
    """A training and its nodes in SimPy."""

    def __init__(
        self, fleet: Fleet, rng: np.random.Generator, work_s: float, limit_s: float
    ) -> None:
        self.fleet, self.rng, self.work_s, self.limit_s = fleet, rng, work_s, limit_s
        self.training = Training()
        self.env = simpy.Environment()
        self.pool = simpy.Container(self.env, init=fleet.spares)
        self.saved = SavedWork(fleet.checkpoint)
        self.corrupted_s = self._after(fleet.corruption.per_s if fleet.corruption else 0.0)
        self.found_s, self.clean_s = math.inf, 0.0
        self.rates = np.cumsum([cause.per_s for cause in fleet.causes])
        self.unplanned = fleet.failures
        self.unplanned_rates = np.cumsum([cause.per_s for cause in self.unplanned])
        self.env.run(self.env.process(self._train()))

    def _after(self, per_s: float) -> float:
        return self.env.now + self.rng.exponential(1 / per_s) if per_s else math.inf

    def _train(self) -> Steps:
        yield from self._restart()
        total = float(self.rates[-1]) if len(self.rates) else 0.0
        fails_s = self._after(total)
        while self.env.now < self.limit_s:
            done_s = self.env.now + self.saved.time_to(self.work_s)
            times = {
                "done": min(done_s, self.limit_s),
                "failure": fails_s,
                "corruption": self.corrupted_s,
                "corruption found": self.found_s,
            }
            event = min(times, key=times.__getitem__)
            start_s = self.env.now
            yield self.env.timeout(max(0.0, times[event] - start_s))
            self.training.seconds[SAVING] += self.saved.advance(start_s, self.env.now - start_s)
            match event:
                case "done":
                    break
                case "failure":
                    number = np.searchsorted(self.rates, self.rng.random() * total, side="right")
                    yield from self._stop(self.fleet.causes[int(number)])
                    fails_s = self._after(total)
                case "corruption":
                    self._corrupt()
                case "corruption found":
                    yield from self._undo_corruption()
        self.training.seconds[WORK] += self.saved.position_s

    def _lose(self, position_s: float) -> None:
        self.training.seconds[LOST] += self.saved.go_back(position_s)

    def _stop(self, cause: Cause) -> Steps:
        if cause.is_planned:
            self.training.planned += 1
            yield from self._spend(SAVING, self.fleet.checkpoint.loadable_s)
            self.saved.save()
            yield from self._restart()
            return
        self._count_interruption(cause.name)
        self._lose(self.saved.saved_at(self.env.now))
        yield from self._find(cause)
        yield from self._restart()

    def _count_interruption(self, name: str) -> None:
        counts = self.training.interruptions
        counts[name] = counts.get(name, 0) + 1

    def _find(self, cause: Cause) -> Steps:
        yield from self._spend(DETECTION, cause.detection_s)
        yield from self._spend(DIAGNOSIS, cause.diagnosis_s)
        if cause.repair_s:
            yield from self._replace_node(cause.repair_s)

    def _restart(self) -> Steps:
        """Start until nothing fails before the end of a start."""
        total = float(self.unplanned_rates[-1]) if self.unplanned else 0.0
        while self.env.now < self.limit_s:
            fails_s = self._after(total) - self.env.now
            if fails_s >= self.fleet.restart_s:
                yield from self._spend(RESTART, self.fleet.restart_s)
                return
            yield from self._spend(RESTART, fails_s)
            drawn = self.rng.random() * total
            cause = self.unplanned[int(np.searchsorted(self.unplanned_rates, drawn, side="right"))]
            self._count_interruption(cause.name)
            yield from self._find(cause)

    def _replace_node(self, repair_s: float) -> Steps:
        """Take a spare; without one, wait for a repair."""
        self.env.process(self._repair(repair_s))
        start_s, spare = self.env.now, self.pool.get(1)
        is_limited = self.limit_s < math.inf
        yield spare | self.env.timeout(max(0.0, self.limit_s - start_s)) if is_limited else spare
        self._count(WAITING, start_s)

    def _repair(self, repair_s: float) -> Steps:
        yield self.env.timeout(self.rng.exponential(repair_s))
        yield self.pool.put(1)

    def _corrupt(self) -> None:
        """From now on results are wrong: only checkpoints until now are good."""
        assert self.fleet.corruption is not None, "only corruption has a time"
        now = self.env.now
        if self.found_s == math.inf:
            self.clean_s = self.saved.saved_at(now)
            self.found_s = now + self.rng.exponential(self.fleet.corruption.discovery_s)
        self.corrupted_s = self._after(self.fleet.corruption.per_s)

    def _undo_corruption(self) -> Steps:
        assert self.fleet.corruption is not None, "only corruption is found"
        self._count_interruption("silent corruption")
        self.found_s = math.inf
        self._lose(self.clean_s)
        yield from self._replace_node(self.fleet.corruption.repair_s)
        yield from self._restart()

    def _spend(self, kind: str, duration_s: float) -> Steps:
        start_s = self.env.now
        yield self.env.timeout(max(0.0, min(duration_s, self.limit_s - start_s)))
        self._count(kind, start_s)

    def _count(self, kind: str, start_s: float) -> None:
        self.training.seconds[kind] += self.env.now - start_s
