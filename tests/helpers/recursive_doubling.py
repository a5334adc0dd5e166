"""An algorithm of collectives that tests add: all-reduce by recursive doubling (Thakur 2005)."""

import math

from simtrain.hardware.algorithms.algorithm import (
    ALL_REDUCE,
    NetworkLinks,
    Protocols,
    SteppedAlgorithm,
    steps_of,
)


class RecursiveDoubling(SteppedAlgorithm[Protocols]):
    """In each step, every rank exchanges the whole array with a rank twice as far away."""

    name = "recursive_doubling"
    kinds = (ALL_REDUCE,)

    def across_nodes_s(self, entry: Protocols, links: NetworkLinks) -> float:
        """Return the time of the fastest protocol: log2(nodes) steps, each with the array."""
        group, node_s = links.group, links.node.measured_s(ALL_REDUCE)
        depth, sent = math.ceil(math.log2(group.num_nodes)), links.array_bytes
        return node_s + min(
            steps.base_s + depth * (steps.network_s + sent / (links.bytes_per_s * steps.efficiency))
            for steps in steps_of(entry, links.step_s)
        )
