"""How a scenario's model is split over ranks, and how its ranks are numbered."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from simtrain.mesh import AXES, Axis, Domains, Mesh
from simtrain.scenario.model import Count
from simtrain.scenario.other_names import PARALLELISM_NAMES
from simtrain.scenario.section import Section

ContextCommunication = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
ExpertDispatch = Literal["all_to_all", "all_gather"]
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
_AXES_IN_ORDER: dict[RankOrder, tuple[Axis, ...]] = {
    "tp-cp-ep-dp-pp": AXES,
    "tp-cp-ep-pp-dp": ("tp", "cp", "ep", "pp", "dp"),
}


class Parallelism(Section):
    """How the model is split: tensor x context x pipeline x data GPUs.

    tensor: ranks that divide each layer's weights (Megatron-LM's --tensor-model-parallel-size).
    sequence_parallel: tensor-parallel ranks also divide each sequence outside the products
        (--sequence-parallel).
    pipeline: stages, each with an equal part of the layers (--pipeline-model-parallel-size).
    interleave: chunks (virtual stages) of each stage.
    first_stage_layers, last_stage_layers: a number of layers of this stage's own
        (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers); the other stages
        share the rest evenly, as all do by default.
    data: replicas of the model, which divide the global batch.
    context: ranks that divide each sequence (Megatron-LM's --context-parallel-size). Each has s/cp
        tokens of it, in two slices, one from its start and one from its end, so that all have as
        much causal attention to compute.
    context_communication: how these ranks see each other's keys (--cp-comm-type). With p2p keys and
        values travel around a ring, hidden behind attention to the block before; with all_gather
        all of them are gathered before attention; with a2a (Ulysses) ranks exchange tokens for
        heads; with a2a+p2p neighbours do that, and their keys travel around rings.
    context_a2a: neighbours that exchange tokens for heads with a2a+p2p, the first of Megatron-LM's
        --hierarchical-context-parallel-sizes; the second is context / context_a2a.
    scatter_gather: each tensor-parallel rank sends 1/t of a stage's output and the receivers
        all-gather it (Megatron's scatter_gather_tensors_in_pipeline of 2022). Under sequence
        parallelism the output is already split, so it is then off.
    expert: groups of ranks that hold different experts (--expert-model-parallel-size).
    expert_tensor: ranks that share the weights of an expert, as many as `tensor` by default
        (--expert-tensor-parallel-size).
    expert_dispatch: how tokens reach their experts: each rank sends them to the ranks that need
        them (all_to_all), or every rank gets all tokens (all_gather).

    The ranks of a pipeline stage (tensor x context x data) are divided a second time for experts,
    as in Megatron-LM: into groups of `expert_tensor` ranks, of which `expert` hold different
    experts, and the others are replicas.
    """

    other_names: ClassVar[Mapping[str, str]] = PARALLELISM_NAMES

    tensor: Count = Field(default=1, examples=[8])
    sequence_parallel: bool = Field(default=False, examples=["true"])
    pipeline: Count = Field(default=1, examples=[8])
    interleave: Count = Field(default=1, examples=[3])
    first_stage_layers: Count | None = Field(default=None, examples=[5])
    last_stage_layers: Count | None = Field(default=None, examples=[5])
    data: Count = Field(default=1, examples=[8])
    context: Count = Field(default=1, examples=[2])
    context_communication: ContextCommunication = Field(default="p2p", examples=["a2a"])
    context_a2a: Count | None = Field(default=None, examples=[4])
    scatter_gather: bool = Field(
        default_factory=lambda parallelism: not parallelism["sequence_parallel"],
        examples=["false"],
    )
    expert: Count = Field(default=1, examples=[8])
    expert_tensor: Count | None = Field(default=None, examples=[1])
    expert_dispatch: ExpertDispatch = Field(default="all_to_all", examples=["all_gather"])

    @property
    def ranks_of_expert(self) -> int:
        """Ranks that share the weights of an expert."""
        return self.expert_tensor or self.tensor

    @property
    def own_stage_layers(self) -> dict[int, int]:
        """Layers of the stages that have a number of their own, by stage.

        A single stage holds all layers, whatever is written.
        """
        ends = {0: self.first_stage_layers, self.pipeline - 1: self.last_stage_layers}
        return {stage: own for stage, own in ends.items() if own and self.pipeline > 1}

    def layers_of_stage(self, stage: int, num_layers: int) -> int:
        """Of `num_layers` those of a stage: its own number, or its share of what those leave."""
        own = self.own_stage_layers
        if stage in own:
            return own[stage]
        return (num_layers - sum(own.values())) // (self.pipeline - len(own))

    def mesh(self, domains: Domains = 8, order: RankOrder = "tp-cp-ep-dp-pp") -> Mesh:
        """The mesh of ranks on a machine with these `domains`, numbered in this `order`."""
        return _mesh(self.tensor, self.context, self.data, self.pipeline, domains, order)


@functools.lru_cache(maxsize=4096)
def _mesh(
    tensor: int, context: int, data: int, pipeline: int, domains: Domains, order: RankOrder
) -> Mesh:
    node, *wider = (domains,) if isinstance(domains, int) else domains
    axes = _AXES_IN_ORDER[order]
    return Mesh(tensor, context, 1, data, pipeline, node, tuple(wider), axes)


class Placement(Section):
    """Which ranks are neighbours, and so share nodes.

    order: the axes by which ranks are numbered, the one of neighbouring ranks first. Megatron-LM
        has two: its default, in which replicas are nearer to each other than pipeline stages, and
        that of --use-tp-pp-dp-mapping, in which stages are nearer. The second asks for as many
        replicas of experts as of the rest (parallel_state.py), which models without experts have.
    """

    order: RankOrder = Field(default="tp-cp-ep-dp-pp", examples=["tp-cp-ep-pp-dp"])
