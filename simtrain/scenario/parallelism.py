"""The sections `parallelism` and `placement`, layouts of pipelines, splits and exchanges."""

import functools
import itertools
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from simtrain.base.mesh import AXES, Axis, Domains, Mesh
from simtrain.base.strict_yaml import FieldError
from simtrain.base.values import dataclass
from simtrain.scenario.dispatchers import ExpertDispatch
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


ContextCommunication = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
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
    pipeline: number of pipeline stages (--pipeline-model-parallel-size); 1 by default. Each stage
        has equally many layers unless first_stage_layers, last_stage_layers or layout is set.
    interleave: number of chunks (virtual stages) per stage. The default is the only number that
        the schedule allows (2 for zbv and dualpipev; that of a file), otherwise 1.
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
        each half, so that all ranks compute equally much causal attention.
    context_communication: how context-parallel ranks exchange keys and values (--cp-comm-type); p2p
        by default, which passes them around a ring, overlapped with attention; all_gather gathers
        all of them before attention; a2a (Ulysses) exchanges tokens for heads; a2a+p2p exchanges
        tokens for heads within subgroups, and passes keys and values around rings between them.
    context_a2a: with a2a+p2p, ranks per all-to-all subgroup: the first of Megatron-LM's
        --hierarchical-context-parallel-sizes. The second is context / context_a2a.
    scatter_gather: true makes each tensor-parallel rank send 1/t of the output of a stage, which
        the receivers all-gather (Megatron-LM's scatter_gather_tensors_in_pipeline of 2022). By
        default true, but false with sequence_parallel, which already shards the output.
    expert: expert-parallel ranks, which hold different experts (--expert-model-parallel-size); 1 by
        default.
    expert_tensor: ranks that shard the weights of each expert (--expert-tensor-parallel-size);
        equal to `tensor` by default.
    expert_dispatch: how tokens reach their experts and come back (--moe-token-dispatcher-type).
        all_to_all sends a copy of each token for each of its experts, by all-to-alls; all_gather
        sends all tokens to every rank, by all-gathers; deepep sends each token once to each node
        and rank of its experts, by DeepEP's kernels; hybridep sends tokens as deepep does, by
        HybridEP's kernels. The software stack sets the default, which is all_to_all for most.

    Experts use a second mesh over the ranks of a pipeline stage (tensor x context x data), as in
    Megatron-LM: expert_tensor x expert ranks hold all experts, and the remaining factor is
    replicas.
    """

    tensor: Degree = Field(default=1, examples=[8])
    sequence_parallel: bool = Field(default=False, examples=["true"])
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
        default_factory=lambda parallelism: not parallelism["sequence_parallel"], examples=["false"]
    )
    expert: Degree = Field(default=1, examples=[8])
    expert_tensor: Degree | None = Field(default=None, examples=[1])
    expert_dispatch: ExpertDispatch | None = Field(default=None, examples=["deepep"])

    @property
    def ranks_of_heads(self) -> int:
        """Context-parallel ranks that exchange tokens for heads; 1 if none do."""
        ranks = {"a2a": self.context, "a2a+p2p": self.context_a2a or 1}
        return ranks.get(self.context_communication, 1)

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


class Placement(Section):
    """How ranks are numbered, which decides the ranks that share a node.

    order: axes of the mesh, the fastest-varying first. The default of Megatron-LM and of simtrain,
        tp-cp-ep-dp-pp, places replicas nearer to each other than pipeline stages. tp-cp-ep-pp-dp
        (--use-tp-pp-dp-mapping) places stages nearer; it needs as many replicas of the experts as
        of the rest of the model (parallel_state.py).
    """

    order: RankOrder = Field(default="tp-cp-ep-dp-pp", examples=["tp-cp-ep-pp-dp"])
