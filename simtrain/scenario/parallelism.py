"""The sections `parallelism` and `placement`, layouts of pipelines, splits and exchanges."""

from __future__ import annotations

import functools
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
)

from pydantic import AfterValidator, Field

from simtrain.base.mesh import AXES, Axis, Domains, Mesh
from simtrain.base.plug_ins import Parts
from simtrain.base.strict_yaml import FieldError
from simtrain.scenario.dispatchers import DISPATCHERS, ExpertDispatch
from simtrain.scenario.section import Count, Degree, Section

# Megatron-Core's notation for the layers of each pipeline chunk, such as Et*3|(tt|)*29mL.
#
# Source: `parse_str_to_list` in core/transformer/pipeline_parallel_layer_layout.py.

EXAMPLE = "Et*5|(t*6|)*6t*7L"
_FIX = f"write the chunks as in {EXAMPLE}"
_LETTERS = "EtmL"
# First groups, then single characters, as in Megatron-Core: groups are not nested.
_REPETITIONS = (re.compile(r"\(([^()]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))
_MOST_REPETITIONS = 1000
MOST_CHARACTERS = 10_000
"""Length of a layout as it is written."""
MOST_LETTERS = 100_000
"""Length of a layout whose repetitions are written out."""


@dataclass(frozen=True, slots=True)
class ChunkContents:
    """What each chunk (virtual stage) of a pipeline contains.

    Args:
        layers: [virtual stages], number of layers.
        prediction: number of the chunk with the modules of token prediction; None without them.
        num_predictions: number of these modules.
    """

    layers: tuple[int, ...]
    prediction: int | None = None
    num_predictions: int = 0

    @property
    def separates_loss(self) -> bool:
        return self.prediction is not None and self.prediction < len(self.layers) - 1

    @property
    def sent_states(self) -> tuple[int, ...]:
        """[virtual stages], hidden states that each one sends to the next one."""
        number = len(self.layers)
        if self.prediction is None:
            return (1,) * number
        return tuple(self.received_states(chunk) for chunk in range(1, number + 1))

    def received_states(self, chunk: int) -> int:
        is_later = self.prediction is not None and chunk > self.prediction
        return 1 + self.num_predictions * is_later


@functools.lru_cache(maxsize=1024)
def chunks_of_layout(layout: str) -> tuple[str, ...]:
    """Return the letters of each chunk: E embedding, t layer, m token prediction, L loss.

    Raises:
        FieldError: Megatron-Core cannot read the layout, or it repeats too often.
    """
    text = layout.replace(",", "")
    for pattern in _REPETITIONS:
        if _expanded_length(text, pattern) > MOST_LETTERS:
            raise FieldError((), f"has more than {MOST_LETTERS} letters", _FIX)
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    chunks = tuple(text.split("|"))
    if unknown := sorted({*text} - {*_LETTERS, "|"}):
        message = f"{''.join(unknown)!r} is neither one of {', '.join(_LETTERS)} nor | between "
        raise FieldError((), f"{message}chunks, *n after a letter, or (...)*n", _FIX)
    return chunks


def layers_of_layout(layout: str) -> tuple[int, ...]:
    """[virtual stages], number of transformer layers of each chunk."""
    return tuple(chunk.count("t") for chunk in chunks_of_layout(layout))


def layout_of_chunks(chunks: Iterable[str]) -> str:
    """Return the layout with these letters in its chunks, with runs as t*4 and (t*4|)*3."""
    *others, last = (re.sub("t{2,}", lambda match: f"t*{len(match[0])}", chunk) for chunk in chunks)
    runs = ((chunk, len([*same])) for chunk, same in itertools.groupby(others))
    texts = (f"({chunk}|)*{times}" if times > 2 else f"{chunk}|" * times for chunk, times in runs)
    return "".join(texts) + last


def checked_layout(layout: str) -> str:
    """Return the layout if `chunks_of_layout` can read it."""
    chunks_of_layout(layout)
    return layout


def _expanded_length(text: str, repetitions: re.Pattern[str]) -> int:
    """Return the length of a layout with its repetitions written out, before that is done."""
    length = len(text)
    for match in repetitions.finditer(text):
        times = match[2]
        if len(times) > len(str(_MOST_REPETITIONS)) or int(times) > _MOST_REPETITIONS:
            raise FieldError((), f"*{times:.9} repeats more than {_MOST_REPETITIONS} times", _FIX)
        length += len(match[1]) * int(times) - len(match[0])
    return length


# How tensor-parallel ranks split the matrices of each layer, if not by columns and rows.
#
# Megatron-LM's split by columns and rows is none of them: it is what `workload.blocks` does
# without. A split is a part of an installed package, such as the guest `related_work`.


class Shares(NamedTuple):
    """Numbers of ranks that divide each dimension.

    Args:
        sequences: the sequences of a microbatch.
        inner: heads, the channels of the MLP and the logits.
        channels: the channels of each matrix, together.
        vocabulary: the vocabulary.
    """

    sequences: int
    inner: int
    channels: int
    vocabulary: int


class TensorSplit(ABC):
    """A way to split the matrices of each layer over the tensor-parallel ranks."""

    name: ClassVar[str]
    """What a scenario writes as parallelism.tensor_split."""
    summary: ClassVar[str]
    """What it does, after its name."""
    ranks: ClassVar[str]
    """The numbers of ranks that it allows, in words."""

    @abstractmethod
    def sizes(self, num_ranks: int) -> Mapping[str, int] | None:
        """Return the sizes of the axes of its grid, that of neighbouring ranks first.

        Args:
            num_ranks: number of tensor-parallel ranks.

        Returns:
            Sizes whose product is `num_ranks`; None if so many ranks do not form a grid.
        """

    @abstractmethod
    def shares(self, sizes: Mapping[str, int]) -> Shares:
        """Return how many ranks divide what, on a grid of these sizes."""

    @abstractmethod
    def grid(self, mesh: Mesh, sizes: Mapping[str, int]) -> object:
        """Return its ranks on a mesh (`workload.rank_grid.RankGrid`)."""


TENSOR_SPLITS: Parts[TensorSplit] = Parts("tensor_splits", TensorSplit, ())


# How context-parallel ranks exchange what attention needs, and the steps that each way orders.
#
# Everything that others ask of an exchange by name is asked here, so that a new one is a class and
# a line of `_HOUSE`, or a part of another package. Tensors are opaque to it: the layer makes them.

TensorT = TypeVar("TensorT")


class AttentionSteps(ABC, Generic[TensorT]):
    """Steps of a layer's attention on one rank, each of which also has a backward pass."""

    @abstractmethod
    def tokens_for_heads(self) -> None:
        """Exchange tokens for heads: the rank then has more tokens, of fewer heads."""

    @abstractmethod
    def heads_for_tokens(self, y: TensorT) -> TensorT:
        """Exchange heads for tokens: the rank then has its own tokens, of all heads."""

    @abstractmethod
    def attend(self) -> TensorT:
        """Attend to the rank's own keys, in one kernel."""

    @abstractmethod
    def attend_around_ring(self) -> TensorT:
        """Attend to the keys of all ranks, which pass them around a ring, in one kernel each."""

    @abstractmethod
    def attend_to_gathered(self) -> TensorT:
        """Gather the keys of all ranks, and attend to them in one kernel for each slice."""


class ContextExchange(ABC):
    """A way in which context-parallel ranks, which divide each sequence, compute attention."""

    name: ClassVar[str]
    """What a scenario writes."""
    summary: ClassVar[str]
    """What it does, for the description of the field."""
    is_fused: ClassVar[bool] = True
    """Whether it runs fused kernels of attention. Otherwise it runs unfused ones."""
    slices: ClassVar[int] = 2
    """Slices of each sequence on a rank: 2, one from each half, balance causal attention."""
    has_subgroups: ClassVar[bool] = False
    """Whether parallelism.context_a2a divides the ranks into subgroups."""
    takes_windows: ClassVar[bool] = False
    """Whether attention can have a window."""
    takes_latent: ClassVar[bool] = False
    """Whether keys and values can differ in size (latent attention)."""
    takes_documents: ClassVar[bool] = False
    """Whether sequences can be packed."""
    takes_groups: ClassVar[bool] = True
    """Whether queries can share keys and values."""
    takes_mamba: ClassVar[bool] = True
    """Whether Mamba-2 layers can be beside attention: they put two slices of a rank in order."""

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        """Return the number of ranks that exchange tokens for heads; 1 if none do.

        Args:
            num_ranks: context-parallel ranks.
            subgroup: parallelism.context_a2a.
        """
        return 1

    @abstractmethod
    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Put the steps of a layer in order; return the output of the rank's tokens."""


class Ring(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVP2P` (ring attention; Liu et al. 2023)."""

    name = "p2p"
    summary = "passes keys and values around a ring, overlapped with attention"
    takes_latent = True
    takes_documents = True

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        return steps.attend_around_ring()


class AllGather(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVAllGather` (Dubey et al. 2024, Section 3.3.2)."""

    name = "all_gather"
    summary = "gathers all keys and values before attention"

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        return steps.attend_to_gathered()


class AllToAll(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndQKVOA2A` (Ulysses; Jacobs et al. 2023)."""

    name = "a2a"
    summary = "(Ulysses) exchanges tokens for heads"
    takes_windows = True

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        return num_ranks

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        steps.tokens_for_heads()
        return steps.heads_for_tokens(steps.attend())


class Hierarchical(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVP2P` with all-to-alls in subgroups."""

    name = "a2a+p2p"
    summary = (
        "exchanges tokens for heads within subgroups, and passes keys and values around rings "
        "between them"
    )
    has_subgroups = True
    takes_latent = True

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        return subgroup or 1

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        steps.tokens_for_heads()
        return steps.heads_for_tokens(steps.attend_around_ring())


_HOUSE: tuple[ContextExchange, ...] = (Ring(), AllGather(), AllToAll(), Hierarchical())
CONTEXT_EXCHANGES = Parts[ContextExchange]("context_exchanges", ContextExchange, _HOUSE)
"""The exchanges by name; the first is the default."""
if TYPE_CHECKING:
    ContextCommunication: TypeAlias = str
else:
    ContextCommunication = Literal[tuple(CONTEXT_EXCHANGES)]  # so that errors list the names


if TYPE_CHECKING:
    TensorSplitName: TypeAlias = str
else:
    TensorSplitName = Literal["1d", *TENSOR_SPLITS]  # so that errors list the names
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
    pipeline: number of pipeline stages (--pipeline-model-parallel-size); 1 by default. Each stage
        has equally many layers unless first_stage_layers, last_stage_layers or layout is set.
    interleave: number of chunks (virtual stages) per stage. The default is the only number that
        the schedule allows (2 for zbv, v_half, v_min and dualpipev; that of a file), otherwise 1.
    microbatch_group_size: microbatches that a chunk runs before the next chunk does
        (--microbatch-group-size-per-virtual-pipeline-stage); `pipeline` by default (null). The last
        group may be smaller, but each has at least one microbatch per stage.
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

    tensor: Degree = Field(default=1, examples=[8])
    sequence_parallel: bool = Field(default=False, examples=["true"])
    tensor_split: TensorSplitName = Field(default="1d", examples=["hidden"])
    pipeline: Degree = Field(default=1, examples=[8])
    interleave: Degree = Field(default=1, examples=[3])
    microbatch_group_size: Count | None = Field(default=None, examples=[8])
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
        return CONTEXT_EXCHANGES[self.context_communication]

    @property
    def matrix_split(self) -> TensorSplit | None:
        return TENSOR_SPLITS.get(self.tensor_split)

    @property
    def grid_sizes(self) -> Mapping[str, int] | None:
        split = self.matrix_split
        return split.sizes(self.tensor) if split else None

    @property
    def ranks_of_heads(self) -> int:
        split, sizes = self.matrix_split, self.grid_sizes
        return split.shares(sizes).inner if split and sizes else self.tensor

    @property
    def has_one_axis(self) -> bool:
        split, sizes = self.matrix_split, self.grid_sizes
        return split is None or (sizes is not None and len(sizes) == 1)

    @property
    def ranks_of_sequences(self) -> int:
        split, sizes = self.matrix_split, self.grid_sizes
        return split.shares(sizes).sequences if split and sizes else 1

    @property
    def ranks_of_expert(self) -> int:
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
