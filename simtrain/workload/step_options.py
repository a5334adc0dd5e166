"""What an optimizer step follows from, beside the parameters of its rank."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from simtrain.mesh import Group, Mesh
from simtrain.scenario import Scenario
from simtrain.workload.fp8 import RECIPES
from simtrain.workload.hashing import hashed_once, shared
from simtrain.workload.shard_groups import expert_groups, joining_group, shard_ranks
from simtrain.workload.work import FP32_BYTES


@hashed_once
@dataclass(frozen=True)
class StepOptions:
    """All but its parameters that a rank's optimizer step follows from.

    Args:
        data, model, everyone: ranks with the same parameters (`Mesh.data_group`), or those that
            divide states between them (`Mesh.shard_group`); the ranks that together hold all
            parameters; the ranks that together hold all states.
        partial_sums: the group that sums gradients of parameters that its ranks hold whole, if
            sequence parallelism leaves partial sums.
        tied: the two stages that hold the same parameters, if there are two.
        zero_stage, offloads: as the scenario's memory.zero_stage and memory.offload_optimizer.
        unscales: gradients come from scaled losses (fp16).
        fully_shards: shards of parameters are in fp32 and are the master weights; gradients are
            added to fp32 shards.
        fused_adam: Adam is one kernel; PyTorch's foreach has one for each of its steps.
        reduces_beside_backward: in buckets, beside the last backward pass.
        gathers_beside_forward: parameters in the same buckets, beside the first forward pass.
        fp8_recipe: how weights are cast to fp8, or "".
        keeps_fp8: weights of fp8 products are kept and gathered in fp8, those of fully_shard only
            gathered.
        caches_fp8: copies in fp8 are made once an iteration, and stay for all microbatches.
        state_bytes: of the optimizer's states of a parameter: master weight, momentum, variance.
        joining: ranks that hold equal shards, if `data` has a part of the replicas.
        keeps_gradients: gradients of all microbatches are added whole, whatever ZeRO divides.
        expert_data, expert_joining, expert_model: as `data`, `joining` and `model`, of the
            parameters of experts; None if the model has none.
    """

    data: Group
    model: Group
    everyone: Group
    partial_sums: Group | None
    tied: Group | None
    zero_stage: int
    offloads: bool
    element_bytes: int
    gradient_bytes: int
    unscales: bool
    reduces_beside_backward: bool
    gathers_beside_forward: bool
    state_bytes: tuple[int, int, int] = (4, 4, 4)
    fp8_recipe: str = ""
    keeps_fp8: bool = False
    caches_fp8: bool = True
    joining: Group | None = None
    keeps_gradients: bool = False
    expert_data: Group | None = None
    expert_joining: Group | None = None
    expert_model: Group | None = None
    fused_adam: bool = True
    fully_shards: bool = False

    @classmethod
    def of(cls, scenario: Scenario, mesh: Mesh) -> StepOptions:
        """The options of a scenario."""
        memory, split, precision = scenario.memory, scenario.parallelism, scenario.precision
        of_experts = scenario.expert_mesh(mesh)
        expert_data, expert_joining = expert_groups(scenario, mesh)
        replicas = max(one.data_group.num_ranks for one in (mesh, of_experts) if one)
        reduces = replicas > 1 and memory.zero_stage < 2
        buckets = reduces and scenario.overlap.data_parallel
        return shared(
            cls(
                *_groups(
                    mesh,
                    partial_sums=split.sequence_parallel,
                    tied=scenario.model.shares_embedding and split.pipeline > 1,
                    num_ranks=shard_ranks(scenario, mesh),
                ),
                zero_stage=memory.zero_stage,
                offloads=memory.offload_optimizer,
                element_bytes=scenario.compute_bytes,
                gradient_bytes=scenario.gradient_bytes,
                unscales=precision.compute == "fp16",
                reduces_beside_backward=buckets,
                gathers_beside_forward=buckets and scenario.overlap.parameter_gather,
                fused_adam=scenario.facts.fused_optimizer,
                fully_shards=scenario.fully_shards,
                state_bytes=(0, 4, 4) if scenario.fully_shards else precision.state_bytes,
                fp8_recipe=scenario.fp8_recipe,
                keeps_fp8=precision.fp8_parameters,
                caches_fp8=scenario.fp8_weights == "cached",
                joining=joining_group(scenario, mesh),
                keeps_gradients=memory.zero_stage > 1 and not scenario.reduces_every_microbatch,
                expert_data=expert_data,
                expert_joining=expert_joining,
                expert_model=of_experts.group("tp", "ep", "pp") if of_experts else None,
            )
        )

    def held(self, num_parameters: int, num_expert: int = 0, *, from_stage: int) -> int:
        """Of states that ZeRO shards from a stage on, those of the rank with the largest shard.

        `num_expert` of the parameters belong to experts.
        """
        if self.zero_stage < from_stage:
            return num_parameters
        return sum(
            -(-number // group.num_ranks)
            for number, group in self.over_replicas(num_parameters, num_expert)
        )

    @property
    def shard_gradient_bytes(self) -> int:
        """Bytes of an element of the gradients that are left once all are reduced."""
        return FP32_BYTES if self.fully_shards else self.gradient_bytes

    @property
    def narrow_states(self) -> bool:
        """Whether Adam's kernel reads states as they are stored, and writes the weights too."""
        return self.state_bytes not in ((0, 4, 4), (4, 4, 4))

    def weights_bytes(self, num_parameters: int, num_fp8: int) -> int:
        """Bytes of a rank's weights; `num_fp8` of them are those of fp8 products."""
        kept = num_fp8 if self.keeps_fp8 and not self.fully_shards else 0
        wide = (num_parameters - kept) * (FP32_BYTES if self.fully_shards else self.element_bytes)
        return wide + RECIPES[self.fp8_recipe].weight_bytes(kept) if kept else wide

    def fp8_copies_bytes(self, num_fp8: int) -> int:
        """Bytes of the copies in fp8 beside the weights: both, or the transposed one."""
        if not num_fp8 or not self.caches_fp8:
            return 0
        copies = 1 if self.keeps_fp8 else 2
        return copies * RECIPES[self.fp8_recipe].weight_bytes(num_fp8)

    def over_replicas(self, num_parameters: int, num_expert: int) -> list[tuple[int, Group]]:
        """Numbers of parameters with the groups of ranks that hold the same ones."""
        if self.expert_data is None or not num_expert:
            return [(num_parameters, self.data)]
        return [(num_parameters - num_expert, self.data), (num_expert, self.expert_data)]


@functools.lru_cache(maxsize=4096)
def _groups(
    mesh: Mesh, *, partial_sums: bool, tied: bool, num_ranks: int
) -> tuple[Group, Group, Group, Group | None, Group | None]:
    """The groups of `StepOptions`, in the order of its fields."""
    return (
        mesh.shard_group(num_ranks),
        mesh.group("tp", "pp"),
        mesh.instance_group(num_ranks),
        mesh.group("tp") if partial_sums else None,
        mesh.ends("pp") if tied else None,
    )
