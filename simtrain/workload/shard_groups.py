"""How ranks shard model states: the groups that shard them, and those that hold equal shards."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.base.mesh import Group, Mesh
from simtrain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class ShardGroups:
    """Groups of ranks that shard the same parameters.

    Args:
        data: ranks that shard them.
        replicate_group: ranks that hold equal shards, over which these are all-reduced; None if
            `data` contains all replicas.
    """

    data: Group
    replicate_group: Group | None = None

    @property
    def last_group(self) -> Group:
        return self.replicate_group or self.data


@dataclass(frozen=True, slots=True)
class Sharding:
    """How ranks shard gradients and, in stage 3, parameters.

    Args:
        groups: ranks that shard them.
        shards_parameters: stage 3.
        expert_groups: ranks that shard those of experts; None if experts have as many replicas as
            other parameters, with which they are then gathered and reduced.
        prefetch: number of units whose parameters are gathered ahead of their use.
        unsharded_until_backward: parameters stay unsharded from a forward pass to its backward
            pass.
        reduces: a backward pass reduces its gradients. Otherwise it adds them to unsharded ones.
        accumulates: reduced gradients are added to those of earlier microbatches.
        is_only_microbatch: there are none. PyTorch's fully_shard then keeps the reduced gradients
            as they are (_fsdp_collectives.py, `foreach_reduce`: `to_accumulate_grad`).
        fully_shards: PyTorch's fully_shard, with its copies.
    """

    groups: ShardGroups
    shards_parameters: bool
    expert_groups: ShardGroups | None = None
    prefetch: int = 1
    unsharded_until_backward: bool = False
    reduces: bool = True
    accumulates: bool = True
    is_only_microbatch: bool = False
    fully_shards: bool = False


def shard_ranks(scenario: Scenario, mesh: Mesh) -> int:
    """Number of ranks that shard model states."""
    return (scenario.memory.shard_over or mesh.copies * mesh.dp) * mesh.cp


def replicate_group(scenario: Scenario, mesh: Mesh) -> Group | None:
    """Return the ranks that hold equal shards, or None if all replicas shard the states."""
    return _replicate_group(mesh, shard_ranks(scenario, mesh))


def expert_groups(scenario: Scenario, mesh: Mesh) -> tuple[Group | None, Group | None]:
    """Return the ranks that shard states of experts, and the ranks that hold equal shards of them.

    Ranks that together hold one copy of all other states also hold one copy of the experts
    (torchtitan's mesh of (dp_replicate, efsdp), Megatron-LM's intra- and inter-partial expert-data
    groups). Both groups are None for a dense model.
    """
    experts = scenario.expert_mesh(mesh)
    if experts is None:
        return None, None
    num_ranks = shard_ranks(scenario, mesh) * mesh.tp // experts.size("tp", "ep")
    return experts.shard_group(num_ranks), _replicate_group(experts, num_ranks)


def _replicate_group(mesh: Mesh, num_ranks: int) -> Group | None:
    return mesh.replicate_group(num_ranks) if num_ranks < mesh.data_group.num_ranks else None


def sharding_of(scenario: Scenario, mesh: Mesh) -> Sharding:
    """Return what the passes of ZeRO stages 2 and 3 shard."""
    memory = scenario.memory
    groups = ShardGroups(
        mesh.shard_group(shard_ranks(scenario, mesh)),
        replicate_group(scenario, mesh),
    )
    experts, joined = expert_groups(scenario, mesh)
    return Sharding(
        groups,
        memory.zero_stage == 3,
        ShardGroups(experts, joined)
        if experts and experts.num_ranks != groups.data.num_ranks
        else None,
        scenario.overlap.prefetch,
        unsharded_until_backward=not memory.reshard_after_forward,
        reduces=mesh.pp == 1,
        accumulates=scenario.reduces_every_microbatch,
        is_only_microbatch=scenario.num_microbatches == 1,
        fully_shards=scenario.fully_shards,
    )
