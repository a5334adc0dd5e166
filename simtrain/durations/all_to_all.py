"""Closed form of all-to-alls, which no algorithm forwards: every rank sends to every other one."""

from __future__ import annotations

from collections.abc import Iterable


def all_to_all_s(
    array_bytes: float,
    num_ranks: int,
    latency_s: float,
    exits: Iterable[tuple[int, float]],
    inside_s: float,
) -> float:
    """Time of an all-to-all: each rank sends 1/n of its array to every rank, all at once.

    Each rank sends (n - ranks inside)/n of its array out of its node, and out of each wider level,
    over its own share of the links. NVLink carries the rest at the same time. The slowest level
    sets the time.

    Args:
        array_bytes: array of each rank.
        num_ranks: ranks of the group.
        latency_s: latency of a transfer between nodes, paid once.
        exits: for the node and each wider level that the group spans, the ranks inside it and one
            rank's bandwidth out of it in bytes/s.
        inside_s: time of the part that stays inside a node.
    """
    leaving_s = ((num_ranks - inside) * array_bytes / num_ranks / rate for inside, rate in exits)
    return max(inside_s, latency_s + max(leaving_s))
