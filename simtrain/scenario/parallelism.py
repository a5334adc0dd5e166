"""The sections `parallelism` and `placement`: sharding of the model, and numbering of ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field

from simtrain.base.mesh import AXES, Axis, Domains, Mesh
from simtrain.scenario.context_exchanges import (
    CONTEXT_EXCHANGES,
    ContextCommunication,
    ContextExchange,
)
from simtrain.scenario.dispatchers import DISPATCHERS, ExpertDispatch
from simtrain.scenario.other_names import names_within
from simtrain.scenario.pipeline_layout import (
    EXAMPLE,
    MOST_CHARACTERS,
    checked_layout,
    chunks_of_layout,
    layers_of_layout,
)
from simtrain.scenario.section import Count, Degree, Section
from simtrain.scenario.tensor_splits import TENSOR_SPLITS, TensorSplit

if TYPE_CHECKING:
    TensorSplitName: TypeAlias = str
else:
    TensorSplitName = Literal["1d", *TENSOR_SPLITS]  # so that errors list the names
_MOST_SLICES = 256
"""Each slice has ops of its own: 1,000 of them take 20 s."""
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
_AXES_IN_ORDER: dict[RankOrder, tuple[Axis, ...]] = {
    "tp-cp-ep-dp-pp": AXES,
    "tp-cp-ep-pp-dp": ("tp", "cp", "ep", "pp", "dp"),
}


class Parallelism(Section):
    """How the model is split over tensor x context x pipeline x data GPUs.

    tensor: tensor-parallel ranks, which shard the weights of each layer (Megatron-LM's
        --tensor-model-parallel-size); 1 by default.
    sequence_parallel: true shards each sequence over the tensor-parallel ranks outside
        attention and MLP (--sequence-parallel); false by default.
    tensor_split: how the tensor-parallel ranks split the matrices of each layer. 1d (default):
        weights by columns, then by rows (Megatron-LM). TENSOR_SPLITS.
    tensor_depth: with the split 2.5d, layers of ranks, which divide the sequences and hold equal
        weights (depth of Colossal-AI's tensor parallelism); by default (null) there are none.
    pipeline: number of pipeline stages (--pipeline-model-parallel-size); 1 by default. Each stage
        has equally many layers unless first_stage_layers, last_stage_layers or layout is set.
    interleave: number of chunks (virtual stages) per stage. The default is the only number that
        the schedule allows (2 for zbv, v_half, v_min and dualpipev; that of a file), otherwise 1.
    microbatch_group_size: microbatches that a chunk runs before the next chunk does
        (--microbatch-group-size-per-virtual-pipeline-stage); `pipeline` by default (null). The last
        group may be smaller, but each has at least one microbatch per stage.
    sequence_slices: slices into which the schedules seq1f1b, seq1f1b_interleaved and terapipe cut
        each sequence (--seq1f1b-splits of Sun et al. 2024); 1 by default. A pass runs one slice.
    slice_balance: tokens (default) cuts sequences into slices of equally many tokens, flops into
        slices of about equally many FLOPs, so that later ones, which attend to more keys, are
        shorter (--seq1f1b-balance-method uniform_comp).
    slice_lengths: tokens of each slice, first to last, in place of slice_balance (TeraPipe's
        non-uniform slices, Li et al. 2021); by default (null), slice_balance decides.
    first_stage_layers, last_stage_layers: number of layers of this stage
        (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers). The other stages
        share the remaining layers evenly; by default (null), all stages do.
    layout: contents of each chunk (--pipeline-model-parallel-layout): E embedding, t layer, m
        module of multi-token prediction, L output layer and loss. A | separates chunks: first one
        of each stage, then the second of each, and so on. t*3 and (tt|)*3 repeat; commas are
        ignored. A chunk may be empty. m may be in an earlier chunk than L (Et*3|(tt|)*29m|L): its
        stage then holds another copy of the embedding, and sends all hidden states. By default
        (null), all chunks of a stage have equally many layers.
    data: data-parallel replicas of the model, which split the global batch; 1 by default.
    context: context-parallel ranks, which shard each sequence (Megatron-LM's
        --context-parallel-size); 1 by default. Each rank holds two slices of the sequence, one from
        each half, so that all ranks compute equally much causal attention; with ring_self_attention
        it holds one slice, and computes all scores of its queries.
    context_communication: how context-parallel ranks exchange keys and values (--cp-comm-type); p2p
        by default. EXCHANGES.
    context_a2a: with a2a+p2p, ranks per all-to-all subgroup: the first of Megatron-LM's
        --hierarchical-context-parallel-sizes. The second is context / context_a2a.
    scatter_gather: true makes each tensor-parallel rank send 1/t of the output of a stage, which
        the receivers all-gather (Megatron-LM's scatter_gather_tensors_in_pipeline of 2022). By
        default true, but false with sequence_parallel or a tensor_split, which already shard the
        output.
    expert: expert-parallel ranks, which hold different experts (--expert-model-parallel-size); 1 by
        default.
    expert_tensor: ranks that shard the weights of each expert (--expert-tensor-parallel-size);
        equal to `tensor` by default.
    expert_dispatch: how tokens reach their experts and come back (--moe-token-dispatcher-type).
        DISPATCHERS. The software stack sets the default, which is all_to_all for most.

    Experts use a second mesh over the ranks of a pipeline stage (tensor x context x data), as in
    Megatron-LM: expert_tensor x expert ranks hold all experts, and the remaining factor is
    replicas.
    """

    other_names: ClassVar[Mapping[str, str]] = names_within("parallelism")

    tensor: Degree = Field(default=1, examples=[8])
    sequence_parallel: bool = Field(default=False, examples=["true"])
    tensor_split: TensorSplitName = Field(default="1d", examples=["hidden"])
    tensor_depth: Count | None = Field(default=None, examples=[2])
    pipeline: Degree = Field(default=1, examples=[8])
    interleave: Degree = Field(default=1, examples=[3])
    microbatch_group_size: Count | None = Field(default=None, examples=[8])
    sequence_slices: Annotated[int, Field(ge=1, le=_MOST_SLICES)] = Field(default=1, examples=[4])
    slice_balance: Literal["tokens", "flops"] = Field(default="tokens", examples=["flops"])
    slice_lengths: (
        Annotated[tuple[Count, ...], Field(strict=False, max_length=_MOST_SLICES)] | None
    ) = Field(default=None, examples=[[640, 512, 448, 448]])
    first_stage_layers: Count | None = Field(default=None, examples=[5])
    last_stage_layers: Count | None = Field(default=None, examples=[5])
    layout: (
        Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(checked_layout)] | None
    ) = Field(default=None, examples=[EXAMPLE])
    data: Degree = Field(default=1, examples=[8])
    context: Degree = Field(default=1, examples=[2])
    context_communication: ContextCommunication = Field(default="p2p", examples=["a2a"])
    context_a2a: Degree | None = Field(default=None, examples=[4])
    scatter_gather: bool = Field(
        default_factory=lambda parallelism: (
            not (parallelism["sequence_parallel"] or parallelism["tensor_split"] in TENSOR_SPLITS)
        ),
        examples=["false"],
    )
    expert: Degree = Field(default=1, examples=[8])
    expert_tensor: Degree | None = Field(default=None, examples=[1])
    expert_dispatch: ExpertDispatch | None = Field(default=None, examples=["deepep"])

    @property
    def context_exchange(self) -> ContextExchange:
        """How context-parallel ranks exchange keys and values."""
        return CONTEXT_EXCHANGES[self.context_communication]

    @property
    def matrix_split(self) -> TensorSplit | None:
        """How tensor-parallel ranks split matrices; None for columns and rows."""
        return TENSOR_SPLITS.get(self.tensor_split)

    @property
    def grid_sizes(self) -> Mapping[str, int] | None:
        """Sizes of the axes of the tensor-parallel ranks; None without a split that has a grid."""
        split = self.matrix_split
        return split.sizes(self.tensor, self.tensor_depth) if split else None

    @property
    def ranks_of_heads(self) -> int:
        """Ranks that divide heads, channels of the MLP and the vocabulary."""
        split, sizes = self.matrix_split, self.grid_sizes
        return split.shares(sizes).inner if split and sizes else self.tensor

    @property
    def has_one_axis(self) -> bool:
        """Whether all tensor-parallel ranks divide the columns or rows of each matrix."""
        split, sizes = self.matrix_split, self.grid_sizes
        return split is None or (sizes is not None and len(sizes) == 1)

    @property
    def ranks_of_sequences(self) -> int:
        """Tensor-parallel ranks that divide the sequences of a microbatch."""
        split, sizes = self.matrix_split, self.grid_sizes
        return split.shares(sizes).sequences if split and sizes else 1

    @property
    def ranks_of_expert(self) -> int:
        """Ranks that shard the weights of each expert."""
        return self.expert_tensor or self.tensor

    @property
    def own_stage_layers(self) -> dict[int, int]:
        """Layers of the first and last stage by stage index, if set explicitly.

        Empty for a single stage, which holds all layers.
        """
        ends = {0: self.first_stage_layers, self.pipeline - 1: self.last_stage_layers}
        return {stage: layers for stage, layers in ends.items() if layers and self.pipeline > 1}

    @property
    def layout_chunks(self) -> tuple[str, ...]:
        """[virtual stages], the letters of each chunk in the layout; empty without a layout."""
        return chunks_of_layout(self.layout) if self.layout is not None else ()

    @property
    def layout_layers(self) -> tuple[int, ...]:
        """[virtual stages], layers of each chunk in the layout; empty without a layout."""
        return layers_of_layout(self.layout) if self.layout is not None else ()

    def layers_of_stage(self, stage: int, num_layers: int) -> int:
        """Layers of a stage without a layout: its own number, or an equal share of the rest."""
        written = self.own_stage_layers
        if stage in written:
            return written[stage]
        return (num_layers - sum(written.values())) // (self.pipeline - len(written))

    def mesh(self, domains: Domains = 8, order: RankOrder = "tp-cp-ep-dp-pp") -> Mesh:
        """Return the mesh of ranks on a machine with these `domains`, numbered in this `order`."""
        return _mesh(self.tensor, self.context, self.data, self.pipeline, domains, order)


@functools.lru_cache(maxsize=4096)
def _mesh(
    tensor: int, context: int, data: int, pipeline: int, domains: Domains, order: RankOrder
) -> Mesh:
    node, *wider = (domains,) if isinstance(domains, int) else domains
    axes = _AXES_IN_ORDER[order]
    return Mesh(tensor, context, 1, data, pipeline, node, tuple(wider), axes)


_EXCHANGES = "; ".join(f"{name} {other.summary}" for name, other in CONTEXT_EXCHANGES.items())
_SUMMARIES = "; ".join(f"{name} {other.summary}" for name, other in DISPATCHERS.items())
_TENSOR_SPLITS = "; ".join(f"{name} {split.summary}" for name, split in TENSOR_SPLITS.items())
# Exchanges, dispatchers and splits of matrices describe themselves, in files of their own.
Parallelism.__doc__ = (
    (Parallelism.__doc__ or "")
    .replace("EXCHANGES", _EXCHANGES)
    .replace("DISPATCHERS", _SUMMARIES)
    .replace("TENSOR_SPLITS", _TENSOR_SPLITS)
)


class Placement(Section):
    """How ranks are numbered, which decides the ranks that share a node.

    order: axes of the mesh, the fastest-varying first. The default of Megatron-LM and of simtrain,
        tp-cp-ep-dp-pp, places replicas nearer to each other than pipeline stages. tp-cp-ep-pp-dp
        (--use-tp-pp-dp-mapping) places stages nearer; it needs as many replicas of the experts as
        of the rest of the model (parallel_state.py).
    """

    order: RankOrder = Field(default="tp-cp-ep-dp-pp", examples=["tp-cp-ep-pp-dp"])
