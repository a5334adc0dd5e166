"""Where ranks sit in the nodes: which links a group or a pair of stages really shares.

Ranks are numbered as Megatron-LM numbers them, tensor parallel fastest, then data, then pipeline
(order tp-dp-pp), and fill the nodes in that order.
"""

from __future__ import annotations

import math
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

    def tensor_group(self) -> GroupPlacement:
        """Neighbouring ranks."""
        return self._strided(self.tensor, 1)

    def data_group(self) -> GroupPlacement:
        """Ranks t apart."""
        return self._strided(self.data, self.tensor)

    def embedding_group(self) -> GroupPlacement:
        """First and last stage, which share the tied embedding."""
        same = self._same_node(0, self.pipeline - 1)
        return GroupPlacement(2, 2 if same else 1)

    def model_group(self) -> GroupPlacement:
        """All ranks that hold one replica: t · p of them."""
        num_ranks = self.tensor * self.pipeline
        nodes = {
            self._rank(i % self.tensor, i // self.tensor) // self.gpus_per_node
            for i in range(num_ranks)
        }
        return GroupPlacement(num_ranks, math.ceil(num_ranks / len(nodes)))

    def stages_share_node(self, stage: int, other: int) -> bool:
        """Whether the transfer between two stages stays inside a node."""
        return self._same_node(stage, other)

    def _strided(self, num_ranks: int, stride: int) -> GroupPlacement:
        per_node = max(1, min(num_ranks, self.gpus_per_node // stride))
        return GroupPlacement(num_ranks, per_node)

    def _rank(self, tensor: int, stage: int) -> int:
        return tensor + self.tensor * self.data * stage

    def _same_node(self, stage: int, other: int) -> bool:
        return all(
            self._rank(t, stage) // self.gpus_per_node == self._rank(t, other) // self.gpus_per_node
            for t in (0, self.tensor - 1)
        )
