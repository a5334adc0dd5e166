"""Groups of ranks that shard model states, and groups that hold equal shards."""

from __future__ import annotations

from simtrain.mesh import Group, Mesh
from simtrain.scenario import Scenario
from simtrain.workload.sharding import ShardGroups, Sharding


def shard_ranks(scenario: Scenario, mesh: Mesh) -> int:
    """Number of ranks that shard model states."""
    return (scenario.memory.shard_over or mesh.dp) * mesh.cp


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
    memory, reshards = scenario.memory, scenario.memory.reshard_after_forward
    groups = ShardGroups(
        mesh.shard_group(shard_ranks(scenario, mesh)),
        replicate_group(scenario, mesh),
        None if isinstance(reshards, bool) else mesh.shard_group(reshards),
    )
    experts, joined = expert_groups(scenario, mesh)
    return Sharding(
        groups,
        memory.zero_stage == 3,
        ShardGroups(experts, joined)
        if experts and experts.num_ranks != groups.data.num_ranks
        else None,
        scenario.overlap.prefetch,
        unsharded_until_backward=reshards is False,
        reduces=mesh.pp == 1,
        accumulates=scenario.reduces_every_microbatch,
        fully_shards=scenario.fully_shards,
    )
