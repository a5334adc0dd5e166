"""Closed forms of the goodput, beside which the simulation stands.

Young 1974, Daly 2006 and Kokolis et al. 2024 (arXiv 2410.21680) for checkpoints and failures;
binomial availability for spares.
"""

from __future__ import annotations

import math

from simtrain.studies.goodput.fleet import Checkpointing, Fleet


def best_interval_s(blocking_s: float, failures_per_s: float) -> float:
    """Return the interval between checkpoints that loses least to first order: sqrt(2 w / rate).

    Infinite without failures.
    """
    return math.sqrt(2 * blocking_s / failures_per_s) if failures_per_s else math.inf


def recovery_s(
    found_s: float, restart_s: float, failures_per_s: float, restart_fails: float = 0.0
) -> float:
    """Return the mean time from a failure to the next iteration, if restarts can fail again.

    The number of starts is geometric. One succeeds with q = (1 - p) exp(-rate R) and takes
    (1 - exp(-rate R)) / rate in the mean; a failure before its end is found first. Without p this
    is Daly's (1 / rate + D)(exp(rate R) - 1) after the first D.

    Args:
        found_s: time D to find a failure.
        restart_s: time R of a start that succeeds.
        failures_per_s: rate of failures, which go on during a start.
        restart_fails: probability p that a start fails of itself at its end.
    """
    load = failures_per_s * restart_s
    start_s = -math.expm1(-load) / failures_per_s if load else restart_s
    fails_before_end = -math.expm1(-load)
    succeeds = (1 - restart_fails) * math.exp(-load)
    return found_s + (start_s + fails_before_end * found_s) / succeeds


def expected_ratio(fleet: Fleet) -> float:
    """Return the effective training time ratio to first order in the rates.

    Kokolis et al. 2024: (1 - sum of rate (u + interval / 2)) / (1 + w / interval), where u is the
    time from a failure to the next iteration. Here u has the rest of a write, which an asynchronous
    checkpoint loses too, and silent corruption loses the time until it is found. With recovery by
    replica, a failure stops all replicas for the reconfiguration, and one of them until it is back.
    Restarts may fail again (`recovery_s`). Waiting for nodes and slow nodes are left out.
    """
    each = fleet.checkpoint
    lost_s = each.interval_s / 2 + each.write_s
    failures = [*fleet.failures()]
    per_s = math.fsum(cause.per_s for cause in failures)
    found_s = math.fsum(cause.per_s * (cause.detection_s + cause.diagnosis_s) for cause in failures)
    found_s = found_s / per_s if per_s else 0.0
    restart_s = recovery_s(found_s, fleet.restart_s, per_s, fleet.restart_fails) - found_s
    terms = []
    for cause in fleet.causes:
        if cause.is_planned:
            down_s = each.blocking_s + each.write_s + restart_s
        elif fleet.reconfiguration_s is not None:
            away_s = cause.detection_s + cause.diagnosis_s + fleet.restart_s
            down_s = fleet.reconfiguration_s + away_s / fleet.num_replicas
        else:
            down_s = cause.detection_s + cause.diagnosis_s + restart_s + lost_s
        terms.append(cause.per_s * down_s)
    if fleet.corruption:
        down_s = fleet.corruption.discovery_s + lost_s + restart_s
        terms.append(fleet.corruption.per_s * down_s)
    return max(0.0, 1 - math.fsum(terms)) / (1 + each.blocking_s / each.interval_s)


def exact_ratio(checkpoint: Checkpointing, failures_per_s: float, down_s: float) -> float:
    """Return the ratio for exponential failures and checkpoints that block until they are written.

    Daly 2006, Equation 20: an interval with its checkpoint takes (1 / rate + R)(exp(rate t) - 1)
    until it succeeds. A time R after a failure in which nothing fails is counted, and a failure
    while the checkpoint is written loses the interval.

    Args:
        checkpoint: with a `write_s` of 0.
        failures_per_s: rate of all failures.
        down_s: time from a failure to the next iteration.
    """
    cycle_s = checkpoint.interval_s + checkpoint.blocking_s
    if not failures_per_s:
        return checkpoint.interval_s / cycle_s
    expected_s = (1 / failures_per_s + down_s) * math.expm1(failures_per_s * cycle_s)
    return checkpoint.interval_s / expected_s


def share_without_spare(spares: int, failures_per_s: float, repair_s: float) -> float:
    """Return the probability that a failure finds no spare: Erlang's loss formula.

    A training that waits has no failures, so nodes under repair are a loss system with one place
    more than there are spares, whose full state is the waiting.
    """
    load = failures_per_s * repair_s
    blocked = 1.0
    for places in range(1, spares + 2):
        blocked = load * blocked / (places + load * blocked)
    return blocked


def nodes_up(num_nodes: int, availability: float, confidence: float) -> int:
    """Return how many of `num_nodes` are up at least, with a probability of `confidence`.

    Exact: the largest k for which P[Binomial(num_nodes, availability) >= k] >= confidence.
    """
    tail = 0.0
    for up in range(num_nodes, -1, -1):
        log = _log_choose(num_nodes, up)
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


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
