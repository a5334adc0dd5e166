"""Where ranks sit in the nodes: which links a group or a pair of stages really shares.

Ranks are numbered as Megatron-LM numbers them, tensor parallel fastest, then data, then pipeline
(order tp-dp-pp), and fill the nodes in that order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simtrain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """A group of ranks over nodes: `ranks_per_node` of them on the fullest node."""

    num_ranks: int
    ranks_per_node: int

    @property
    def num_nodes(self) -> int:
        """Nodes that the group spans."""
        return math.ceil(self.num_ranks / self.ranks_per_node)

    @property
    def inside_one_node(self) -> bool:
        """Whether no rank of the group is on another node."""
        return self.num_nodes == 1


@dataclass(frozen=True, slots=True)
class Placement:
    """The rank grid t × d × p on nodes of `gpus_per_node`."""

    tensor: int
    data: int
    pipeline: int
    gpus_per_node: int

    @classmethod
    def of(cls, scenario: Scenario, gpus_per_node: int) -> Placement:
        """The grid of a scenario."""
        grid = scenario.parallelism
        return cls(grid.tensor, grid.data, grid.pipeline, gpus_per_node)

    @property
    def ranks_per_stage(self) -> int:
        """Ranks of all replicas of a stage, which are neighbours: t · d."""
        return self.tensor * self.data

    def tensor_group(self) -> GroupPlacement:
        """Neighbouring ranks."""
        num_ranks = self.ranks_per_stage * self.pipeline
        return self._widest(range(self.tensor), range(0, num_ranks, self.tensor))

    def data_group(self) -> GroupPlacement:
        """Ranks t apart."""
        stages = range(0, self.ranks_per_stage * self.pipeline, self.ranks_per_stage)
        starts = (stage + tensor for stage in stages for tensor in range(self.tensor))
        return self._widest(range(0, self.ranks_per_stage, self.tensor), starts)

    def embedding_group(self) -> GroupPlacement:
        """First and last stage, which share the tied embedding."""
        last_stage = self.ranks_per_stage * (self.pipeline - 1)
        return self._widest((0, last_stage), range(self.ranks_per_stage))

    def model_group(self) -> GroupPlacement:
        """All ranks that hold one replica: t · p of them."""
        stages = range(0, self.ranks_per_stage * self.pipeline, self.ranks_per_stage)
        ranks = [stage + tensor for stage in stages for tensor in range(self.tensor)]
        return self._widest(ranks, range(0, self.ranks_per_stage, self.tensor))

    def all_ranks(self) -> GroupPlacement:
        """Every rank of the job."""
        num_ranks = self.ranks_per_stage * self.pipeline
        return self._widest(range(num_ranks), (0,))

    def stages_share_node(self, stage: int, other: int) -> bool:
        """Whether every transfer between two stages stays inside a node."""
        if stage == other:
            return True
        first = min(stage, other) * self.ranks_per_stage
        last = (max(stage, other) + 1) * self.ranks_per_stage - 1
        return first // self.gpus_per_node == last // self.gpus_per_node

    def _widest(self, offsets: Sequence[int], starts: Iterable[int]) -> GroupPlacement:
        """Of the groups with the same offsets from their first ranks, the one on the most nodes.

        All groups work at the same time and the slowest decides. Groups that start at the same
        place in a node lie alike.
        """
        layouts = (
            Counter((start + offset) // self.gpus_per_node for offset in offsets)
            for start in {start % self.gpus_per_node for start in starts}
        )
        fullest = min((-len(nodes), max(nodes.values())) for nodes in layouts)[1]
        return GroupPlacement(len(offsets), fullest)
