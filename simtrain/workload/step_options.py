"""Options of an optimizer step."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simtrain.base.mesh import Axis, Group, Mesh
from simtrain.scenario import Scenario
from simtrain.workload.fp8 import RECIPES
from simtrain.workload.hashing import hashed_once, shared
from simtrain.workload.shard_groups import expert_groups, replicate_group, shard_ranks
from simtrain.workload.work import FP32_BYTES

if TYPE_CHECKING:
    from simtrain.workload.recorded_step import RecordedStep

_STAGES: tuple[Axis, ...] = ("pp",)


@hashed_once
@dataclass(frozen=True)
class StepOptions:
    """Everything that determines a rank's optimizer step, except its parameters.

    Args:
        data: ranks with the same parameters (`Mesh.data_group`), or ranks that shard states
            (`Mesh.shard_group`).
        model: ranks that together hold all parameters.
        everyone: ranks that together hold all states.
        partial_sums: the group that sums partial gradients of parameters that its ranks hold whole;
            None without sequence parallelism.
        tied: the stages that share the table of the embedding; None if none do.
        zero_stage, offloads: as the scenario's memory.zero_stage and memory.offload_optimizer.
        unscales: gradients come from scaled losses (fp16).
        fully_shards: shards of parameters are in fp32 and are the master weights; gradients are
            added to fp32 shards.
        element_bytes, gradient_bytes: of parameters and of the gradient buffer.
        fused_adam: Adam is one kernel; PyTorch's foreach Adam has one kernel per step.
        reduces_during_backward: gradient buckets overlap the last backward pass.
        gathers_during_forward: parameter buckets overlap the first forward pass.
        fp8_recipe: name of the recipe that casts weights to fp8; "" without fp8.
        keeps_fp8: weights of fp8 products are stored and gathered in fp8; with fully_shard they are
            only gathered in fp8. Frozen ones are stored only.
        fp8_copies: fp8 copies of each weight that are made once per iteration and stay for all
            microbatches, besides weights that are kept in fp8.
        state_bytes: bytes per parameter of master weight, momentum and variance.
        replicate_group: ranks that hold equal shards; None if `data` contains all replicas.
        keeps_gradients: gradients of all microbatches are added unsharded, even with ZeRO.
        users: ranks that use their hosts at the same time.
        expert_data, expert_replicate_group, expert_model: as `data`, `replicate_group` and
            `model`, for the parameters of experts; None for a dense model.
        recorded: the recorded program whose optimizer this is; None for other models.
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
    reduces_during_backward: bool
    gathers_during_forward: bool
    state_bytes: tuple[int, int, int] = (4, 4, 4)
    fp8_recipe: str = ""
    keeps_fp8: bool = False
    fp8_copies: int = 2
    replicate_group: Group | None = None
    keeps_gradients: bool = False
    expert_data: Group | None = None
    expert_replicate_group: Group | None = None
    expert_model: Group | None = None
    fused_adam: bool = True
    fully_shards: bool = False
    users: int | None = None
    recorded: RecordedStep | None = None

    @classmethod
    def of(
        cls, scenario: Scenario, mesh: Mesh, recorded: RecordedStep | None = None
    ) -> StepOptions:
        memory, split, precision = scenario.memory, scenario.parallelism, scenario.precision
        of_experts = scenario.expert_mesh(mesh)
        expert_data, expert_replicate_group = expert_groups(scenario, mesh)
        replicas = max(
            each_mesh.data_group.num_ranks for each_mesh in (mesh, of_experts) if each_mesh
        )
        reduces = replicas > 1 and memory.zero_stage < 2 and recorded is None
        buckets = reduces and scenario.overlaps_data_parallel
        return shared(
            cls(
                *_groups(
                    mesh,
                    partial_sums=split.sequence_parallel,
                    tied=scenario.embedding_stages,
                    num_ranks=shard_ranks(scenario, mesh),
                ),
                zero_stage=memory.zero_stage,
                offloads=memory.offload_optimizer,
                element_bytes=scenario.precision.compute_bytes,
                gradient_bytes=scenario.gradient_bytes,
                unscales=precision.compute == "fp16",
                reduces_during_backward=buckets,
                gathers_during_forward=buckets and scenario.overlaps_parameter_gather,
                fused_adam=scenario.facts.fused_optimizer,
                fully_shards=scenario.fully_shards,
                state_bytes=(0, 4, 4) if scenario.fully_shards else precision.state_bytes,
                fp8_recipe=scenario.fp8_recipe,
                keeps_fp8=scenario.keeps_fp8_parameters,
                fp8_copies=_fp8_copies(scenario),
                replicate_group=replicate_group(scenario, mesh),
                keeps_gradients=memory.zero_stage > 1 and not scenario.reduces_every_microbatch,
                expert_data=expert_data,
                expert_replicate_group=expert_replicate_group,
                expert_model=of_experts.group("tp", "ep", *_STAGES) if of_experts else None,
                users=mesh.num_ranks if memory.offload_optimizer else None,
                recorded=recorded,
            )
        )

    def held(self, num_parameters: int, num_expert: int = 0, *, from_stage: int) -> int:
        """Return the number of parameters whose states a rank holds.

        Args:
            num_parameters: parameters of the rank.
            num_expert: parameters that belong to experts.
            from_stage: first ZeRO stage that shards the states.
        """
        if self.zero_stage < from_stage:
            return num_parameters
        return sum(
            -(-number // group.num_ranks)
            for number, group in self.over_replicas(num_parameters, num_expert)
        )

    @property
    def reduces_in_passes(self) -> bool:
        return self.zero_stage >= 2 or self.reduces_during_backward

    @property
    def shard_gradient_bytes(self) -> int:
        return FP32_BYTES if self.fully_shards else self.gradient_bytes

    @property
    def narrow_states(self) -> bool:
        return self.state_bytes not in ((0, 4, 4), (4, 4, 4))

    def weights_bytes(self, num_parameters: int, num_fp8: int) -> int:
        kept = num_fp8 if self.keeps_fp8 and not self.fully_shards else 0
        wide = (num_parameters - kept) * (FP32_BYTES if self.fully_shards else self.element_bytes)
        return wide + RECIPES[self.fp8_recipe].weight_bytes(kept) if kept else wide

    def gathered_bytes(self, num_parameters: int, num_fp8: int) -> int:
        """Bytes of updated weights that ranks gather; `num_fp8` are weights of fp8 products.

        Without square blocks, ranks gather bf16 and cast both copies afterwards. Source:
        Megatron-LM's distributed/param_and_grad_buffer.py (reuse_grad_buf_for_mxfp8_param_ag).
        """
        is_narrow = not self.fp8_recipe or RECIPES[self.fp8_recipe].transposes_weights
        return self.weights_bytes(num_parameters, num_fp8 if is_narrow else 0)

    def fp8_copies_bytes(self, num_fp8: int, copies: int) -> int:
        return copies * RECIPES[self.fp8_recipe].weight_bytes(num_fp8) if num_fp8 * copies else 0

    def over_replicas(self, num_parameters: int, num_expert: int) -> list[tuple[int, Group]]:
        """Return pairs of a number of parameters and the group that holds the same parameters."""
        if self.expert_data is None or not num_expert:
            return [(num_parameters, self.data)]
        return [(num_parameters - num_expert, self.data), (num_expert, self.expert_data)]


def _fp8_copies(scenario: Scenario) -> int:
    used = {"cached": 2, "rows": 1}.get(scenario.fp8_weights, 0)
    return max(0, used - scenario.keeps_fp8_parameters)


@functools.lru_cache(maxsize=4096)
def _groups(
    mesh: Mesh, *, partial_sums: bool, tied: tuple[int, ...], num_ranks: int
) -> tuple[Group, Group, Group, Group | None, Group | None]:
    return (
        mesh.shard_group(num_ranks),
        mesh.group("tp", *_STAGES),
        mesh.instance_group(num_ranks),
        mesh.group("tp") if partial_sums else None,
        mesh.group_at("pp", tied) if len(tied) > 1 else None,
    )
