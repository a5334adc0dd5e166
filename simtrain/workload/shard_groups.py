"""How ranks shard model states: the groups that shard them, and those that hold equal shards."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.base.mesh import Group, Mesh
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, Phase
from simtrain.workload.work import FP32_BYTES, HostResource, HostWork

# States of the model that passes copy between the GPU and its host, and between host and NVMe.
#
# Sources: Ren et al., "ZeRO-Offload" (2021), Section 4; Rajbhandari et al., "ZeRO-Infinity" (2021),
# Sections 5 and 6; DeepSpeed's runtime/zero/stage3.py (`partition_grads`: gradients of a later
# microbatch are added on the GPU to the sum, which comes from the host and goes back to it).


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Which states a pass copies.

    Args:
        parameters, gradients: the states on the host.
        one_owner: a parameter belongs to one rank, which copies all of it.
        parameters_on_nvme, gradients_on_nvme: the host reads or writes them on disks too.
        users: ranks that copy gradients at the same time.
        readers: ranks that copy parameters at the same time; with one owner, one per replica group.
        adds_sum: the gradients are added to the sum of earlier microbatches, which comes back.
        is_last: the gradients are complete after this microbatch.
    """

    parameters: bool
    gradients: bool
    one_owner: bool
    parameters_on_nvme: bool
    gradients_on_nvme: bool
    users: int
    readers: int
    adds_sum: bool = False
    is_last: bool = True

    @classmethod
    def of(cls, scenario: Scenario, mesh: Mesh) -> HostCopies | None:
        memory = scenario.memory
        if not memory.copies_in_passes:
            return None
        one_owner, ranks = memory.parameter_owners == "one", mesh.num_ranks
        return cls(
            memory.offload_parameters,
            memory.offload_gradients,
            one_owner,
            memory.parameters_on_nvme,
            memory.offload_gradients and memory.optimizer_on_nvme,
            users=ranks,
            readers=ranks // mesh.data_group.num_ranks if one_owner else ranks,
            is_last=scenario.num_microbatches == 1,
        )

    def copied_elements(self, elements: int, num_ranks: int) -> int:
        """Parameters that a rank copies to its GPU before `num_ranks` ranks gather them all."""
        return elements if self.one_owner else -(-elements // num_ranks)

    def read(self, num_bytes: int, phase: Phase) -> Op:
        return _op("parameters from NVMe", num_bytes, HostResource.NVME_READ, self.readers, phase)

    def parameters_in(self, num_bytes: int, phase: Phase) -> Op:
        return _op("parameters from host", num_bytes, HostResource.LINK, self.readers, phase)

    def sum_in(self, num_bytes: int) -> Op:
        """Bring the sum of earlier gradients back to the GPU."""
        phase = Phase.WEIGHT_GRADIENT
        return _op("gradient sum from host", num_bytes, HostResource.LINK, self.users, phase)

    def gradients_out(self, num_bytes: int) -> Op:
        phase = Phase.WEIGHT_GRADIENT
        op = _op("gradients to host", num_bytes, HostResource.LINK, self.users, phase, leaves=True)
        return op

    def write(self, elements: int) -> Op:
        name, phase = "gradients to NVMe", Phase.WEIGHT_GRADIENT
        num_bytes, resource = elements * FP32_BYTES, HostResource.NVME_WRITE
        return _op(name, num_bytes, resource, self.users, phase, leaves=True)


def _op(
    name: str,
    num_bytes: int,
    resource: HostResource,
    users: int,
    phase: Phase,
    *,
    leaves: bool = False,
) -> Op:
    return Op(name, HostWork(num_bytes, resource, users, leaves), phase)


@dataclass(frozen=True, slots=True)
class ShardGroups:
    """Groups of ranks that shard the same parameters.

    Args:
        data: ranks that shard them.
        replicate_group: ranks that hold equal shards, over which these are all-reduced; None if
            `data` contains all replicas.
        reshard_group: smaller group over which parameters are sharded from a forward pass to its
            backward pass; None for `data`.
    """

    data: Group
    replicate_group: Group | None = None
    reshard_group: Group | None = None

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
        host: copies to and from the host; None without any.
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
    host: HostCopies | None = None


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
    """Return what the passes of ZeRO stages 2 and 3 shard, or what they copy to the host."""
    memory, reshards = scenario.memory, scenario.memory.reshard_after_forward
    groups = ShardGroups(
        mesh.shard_group(shard_ranks(scenario, mesh)),
        replicate_group(scenario, mesh),
        None if isinstance(reshards, bool) else mesh.shard_group(reshards),
    )
    experts, joined = expert_groups(scenario, mesh)
    return Sharding(
        groups,
        memory.zero_stage == 3 or memory.offload_parameters,
        ShardGroups(experts, joined)
        if experts and experts.num_ranks != groups.data.num_ranks
        else None,
        scenario.overlap.prefetch,
        unsharded_until_backward=reshards is False,
        reduces=mesh.pp == 1,
        accumulates=scenario.reduces_every_microbatch,
        is_only_microbatch=scenario.num_microbatches == 1,
        fully_shards=scenario.fully_shards,
        host=HostCopies.of(scenario, mesh),
    )
