"""Records of collectives across nodes, made from a simulated network."""

from calibrate.fit.links import LinkFit, measured_collective
from calibrate.fit.network import Load
from calibrate.records.schema import CollectiveRecord, Measurement
from simtrain.hardware.algorithms import ring_over_network_s
from simtrain.workload.work import RING_COLLECTIVES
from tests.helpers.measured_records import took

STEP_S, SEND_S = 20e-6, 30e-6
SIZES = [1024 << (2 * power) for power in range(10)]
ALONE = 22e9
"""Bytes/s of a ring of one rank a node."""


def crossing(
    per_node: int, shares: dict[Load, float], sent: float, node: LinkFit | None = None
) -> list[Measurement]:
    """Return the records of pairs of nodes whose ranks reach `shares` and send at
    `sent` bytes/s.
    """
    groups = {Load.WHOLE: (2 * per_node, 1), Load.CONCURRENT: (2, per_node), Load.ALONE: (2, 1)}
    return [
        CollectiveRecord(
            op=op,
            array_bytes=size,
            num_ranks=groups[load][0],
            num_groups=groups[load][1],
            num_nodes=2,
            time=took(seconds),
        )
        for load, share in shares.items()
        for size in SIZES
        for op, seconds in _seconds(groups[load][0], size, share, sent, load, node)
    ]


def _seconds(
    num_ranks: int, size: int, share: float, sent: float, load: Load, node: LinkFit | None
) -> list[tuple[str, float]]:
    on_node, found = num_ranks // 2, []
    for kind in RING_COLLECTIVES:
        op = measured_collective(kind, size, num_ranks, num_nodes=2)
        seconds = ring_over_network_s(kind, size, num_ranks, STEP_S, on_node * share)
        inside_s = 0.0 if node is None or on_node == 1 else node.ring_seconds(op, on_node)
        found.append((kind.value, max(seconds, inside_s)))
    rate = ALONE if load is Load.ALONE else sent
    return [*found, ("send_recv", SEND_S + size / rate), ("all_to_all", 1e-3 + size / 1e9)]
