"""Where the ranks of an iteration are: stages, replicas, and the ranks that share a stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from simtrain.base.mesh import Group, Mesh
from simtrain.engine.compiled import Ints
from simtrain.iteration.plan import Plan


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank: its pipeline stage, its replica, and its number among their ranks."""

    stage: int
    replica: int
    member: int


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The ranks of an iteration.

    The ranks of a stage and a replica, along tensor and context parallelism, wait for each other in
    every layer. Expert parallelism joins the replicas that exchange tokens in the same way.

    Args:
        mesh: of the layers that are not experts.
        expert_replicas: neighbouring replicas that exchange tokens for experts; 1 without.
        shard_replicas: neighbouring replicas that hold one copy of the sharded states.
    """

    mesh: Mesh
    expert_replicas: int
    shard_replicas: int

    @classmethod
    def of(cls, plan: Plan) -> RankLayout:
        """Return the layout of a plan."""
        mesh, split = plan.mesh, plan.scenario.parallelism
        members = mesh.size("tp", "cp")
        exchanging = split.expert * split.ranks_of_expert if plan.scenario.model.experts else 1
        return cls(
            mesh,
            min(mesh.dp, -(-exchanging // members)),
            min(mesh.dp, plan.scenario.memory.shard_over or mesh.dp),
        )

    @property
    def members(self) -> int:
        """Ranks of a stage and a replica."""
        return self.mesh.size("tp", "cp")

    def place(self, rank: int) -> Place:
        """Return the place of a rank of the mesh."""
        mesh = self.mesh
        tensor, context, replica, stage = (
            rank // mesh.stride(axis) % mesh.size(axis) for axis in ("tp", "cp", "dp", "pp")
        )
        return Place(stage, replica, tensor + mesh.tp * context)

    def ranks_on_node(self, rank: int) -> range:
        """Return all ranks on the node of a rank."""
        node = rank // self.mesh.gpus_per_node
        first = node * self.mesh.gpus_per_node
        return range(first, min(first + self.mesh.gpus_per_node, self.mesh.num_ranks))

    def replicas_joined_by(self, group: Group) -> int:
        """Return how many neighbouring replicas a collective of a group joins."""
        if "dp" in group.axes:
            is_shard_group = {*group.axes} <= {"cp", "dp"} and not group.joins_shards
            return self.shard_replicas if is_shard_group else self.mesh.dp
        return self.expert_replicas if "ep" in group.axes else 1

    def replicas_to_simulate(self, differing: Iterable[int], *, all_differ: bool) -> Ints:
        """Return the replicas that are simulated: those that differ, and one more for the rest.

        Replicas that exchange tokens with one that differs wait for it, so they are simulated too.
        """
        replicas, size = self.mesh.dp, self.expert_replicas
        if all_differ:
            return np.arange(replicas)
        groups = {replica // size for replica in differing}
        rest = next((group for group in range(-(-replicas // size)) if group not in groups), None)
        groups |= set() if rest is None else {rest}
        return np.array(
            [
                replica
                for group in sorted(groups)
                for replica in range(group * size, min((group + 1) * size, replicas))
            ]
        )
