"""Closed forms of the goodput, beside which the simulation stands.

Young 1974, Daly 2006 and Kokolis et al. 2024 (arXiv 2410.21680) for checkpoints and failures;
Erlang's loss formula for waiting, and binomial availability for spares.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simtrain.studies.goodput.fleet import Fleet

_MOST_EXPONENT = 600.0
"""Larger exponents overflow; what they stand for never ends anyway."""


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
    found. With recovery by replica, a failure stops all replicas for the reconfiguration, and one
    of them until it is back. Waiting for nodes is left out.
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
        elif fleet.reconfiguration_s is not None:
            away_s = cause.found_s + fleet.restart_s
            down_s = fleet.reconfiguration_s + away_s / fleet.num_replicas
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


def hours_for_an_hour(fleet: Fleet) -> dict[str, float]:
    """Return what an hour of iterations costs, in hours by cause, at any rates.

    Beyond first order, work is repeated until a checkpoint can be loaded: (exp(x) - 1) / x times
    for x failures until then (Daly 2006). Waiting for nodes is Erlang's.
    """
    hours = hours_lost_per_hour(fleet)
    each, corruption = fleet.checkpoint, fleet.corruption
    away_s = fleet.restart_s + max((cause.found_s for cause in fleet.failures), default=0.0)
    per_s = fleet.failures_per_s
    # Replicas that recover one by one lose work only once nearly all of them are away.
    if fleet.reconfiguration_s is not None and per_s * away_s < fleet.num_replicas / 2:
        per_s = corruption.per_s if corruption else 0.0
    unsaved = min(per_s * (each.interval_s + each.loadable_s), _MOST_EXPONENT)
    hours["lost work"] = math.expm1(unsaved) / unsaved - 1 if unsaved else 0.0
    hours["checkpoints"] = each.blocking_s / each.interval_s
    repairs_s = math.fsum(cause.per_s * cause.repair_s for cause in fleet.causes)
    repairs_s += corruption.per_s * corruption.repair_s if corruption else 0.0
    waiting = share_of_time_waiting(fleet.spares, repairs_s, 1.0)
    working = 1 + math.fsum(hours.values())
    hours["waiting for nodes"] = working * waiting / max(1 - waiting, 1e-12)
    return hours


def share_of_time_waiting(spares: int, failures_per_s: float, repair_s: float) -> float:
    """Return the share of its time for which a training waits for a node: Erlang's loss formula.

    A training that waits has no failures, so nodes under repair are a loss system with one place
    more than there are spares. The training waits while all places are taken. (A failure finds no
    spare more often: it sees only the times at which the training works.)
    """
    load = failures_per_s * repair_s
    waiting = 1.0
    for places in range(1, spares + 2):
        if not waiting:
            break
        waiting = load * waiting / (places + load * waiting)
    return waiting


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
