"""Which ranks divide model states between them, and which hold equal shards."""

from __future__ import annotations

from simtrain.mesh import Group, Mesh
from simtrain.scenario import Scenario
from simtrain.workload.sharding import Sharding


def shard_ranks(scenario: Scenario, mesh: Mesh) -> int:
    """Ranks that divide model states between them, if any are divided."""
    return (scenario.memory.shard_over or mesh.dp) * mesh.cp


def joining_group(scenario: Scenario, mesh: Mesh) -> Group | None:
    """The ranks that hold equal shards, unless all replicas divide the states."""
    return _joining(mesh, shard_ranks(scenario, mesh))


def expert_groups(scenario: Scenario, mesh: Mesh) -> tuple[Group | None, Group | None]:
    """The ranks that divide states of experts, and those that hold equal shards of them, if any.

    The ranks that hold one copy of all other states hold one of the experts' too: torchtitan's mesh
    of (dp_replicate, efsdp), Megatron-LM's intra- and inter-partial expert-data groups.
    """
    experts = scenario.expert_mesh(mesh)
    if experts is None:
        return None, None
    num_ranks = shard_ranks(scenario, mesh) * mesh.tp // experts.size("tp", "ep")
    return experts.shard_group(num_ranks), _joining(experts, num_ranks)


def _joining(mesh: Mesh, num_ranks: int) -> Group | None:
    return mesh.joining_group(num_ranks) if num_ranks < mesh.data_group.num_ranks else None


def sharding_of(scenario: Scenario, mesh: Mesh) -> Sharding:
    """What the passes of ZeRO stages 2 and 3 divide."""
    memory, reshards = scenario.memory, scenario.memory.reshard_after_forward
    return Sharding(
        mesh.shard_group(shard_ranks(scenario, mesh)),
        memory.zero_stage == 3,
        joining_group(scenario, mesh),
        scenario.overlap.prefetch,
        keeps_gathered=reshards is False,
        resharded=None if isinstance(reshards, bool) else mesh.shard_group(reshards),
        reduces=mesh.pp == 1,
        accumulates=scenario.reduces_every_microbatch,
        fully_shards=scenario.fully_shards,
    )
