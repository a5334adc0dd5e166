"""The blocks around the layers: batch, embedding, token prediction, loss; chunks of a model.

Sources of embedding and head: Megatron-LM's `VocabParallelEmbedding`, `Embedding`,
`parallel_lm_logits` and `vocab_parallel_cross_entropy`. Source of multi-token prediction
(DeepSeek-AI 2024, Section 2.2): its core/transformer/multi_token_prediction.py. Rolled tokens,
labels and masks are not counted.

With token prediction, the hidden states of the last layer and of every module are the rows of one
tensor, which the head splits. So a module may be in another chunk than the loss.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from simtrain.base.values import dataclass, replace
from simtrain.scenario.model import Normalization
from simtrain.scenario.parallelism import ChunkContents
from simtrain.workload.blocks import (
    column_linear,
    concat,
    concat_rows,
    copy,
    cross_entropy,
    dropout,
    gather_columns,
    look_up,
    norm,
    positions,
    split_rows,
)
from simtrain.workload.blocks.elementwise import MASK_BYTES
from simtrain.workload.chunk import Chunk, Parameters, chunk_of, parameters
from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import IssueOrder
from simtrain.workload.lengths import for_any_length
from simtrain.workload.ops import Op, Tensor, collective, elementwise, gradient
from simtrain.workload.recompute import TOKEN_PREDICTION
from simtrain.workload.tape import Block, Microbatch, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind

# Loading a microbatch, which every stage does before each forward pass.
#
# Megatron-LM's `get_batch` of 2022 runs on every stage and for every chunk: the sizes and then the
# tokens are broadcast over the tensor-parallel ranks, and `get_ltor_masks_and_position_ids` builds
# the causal mask, the loss mask and the positions. The kernels are small, but their launches take
# time: the GPU has just been synchronized and waits for the host. Under context parallelism each
# rank then takes its two slices of every sequence (`get_batch_on_this_cp_rank`), or its only one,
# which needs no indices.

_INT64_BYTES = 8


@dataclass(frozen=True, slots=True)
class GetBatch:
    """Loads the tokens and masks of a microbatch; has no gradients.

    With `causal_mask` it builds an [s, s] mask, which fused attention does not need.
    """

    causal_mask: bool = True
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the kernels; return the hidden states of the previous chunk unchanged."""
        ops = [*_get_batch(tape.microbatch, causal_mask=self.causal_mask)]
        tape.record("get_batch", (), (), ops)
        return x


def _get_batch(batch: Microbatch, *, causal_mask: bool) -> Iterator[Op]:
    length, sequences = batch.whole_length, batch.sequences
    text = sequences * (length + 1) * _INT64_BYTES
    mask = length**2
    yield elementwise("sizes to device", 0, _INT64_BYTES)
    yield _broadcast(batch, "sizes", _INT64_BYTES)
    yield elementwise("sizes to host", _INT64_BYTES, 0)
    yield elementwise("tokens joined", text, text)
    yield elementwise("tokens to device", 0, text)
    yield _broadcast(batch, "tokens", text)
    yield elementwise("labels", text, text)
    yield elementwise("inputs", text, text)
    if causal_mask:
        yield elementwise("mask ones", 0, mask * FP32_BYTES)
        yield elementwise("mask triangle", mask * FP32_BYTES, mask * FP32_BYTES)
    yield elementwise("loss mask", 0, sequences * length * FP32_BYTES)
    yield elementwise("positions", 0, length * _INT64_BYTES)
    if causal_mask:
        yield elementwise("mask below one half", mask * FP32_BYTES, mask * MASK_BYTES)
    if batch.context:
        yield from _slices(batch)


def _slices(batch: Microbatch) -> Iterator[Op]:
    """For each tensor, copy the indices of the rank's two slices to the GPU, then the slices."""
    for name in ("inputs", "labels", "loss mask", "positions"):
        size = batch.tokens * (FP32_BYTES if name == "loss mask" else _INT64_BYTES)
        yield elementwise(f"{name} slices to device", 0, 2 * _INT64_BYTES)
        yield elementwise(f"{name} slices", size, size)


def _broadcast(batch: Microbatch, name: str, num_bytes: int) -> Op:
    # Profiles have curves of all-gathers, which take as long for so few bytes.
    return collective(f"{name} broadcast", CollectiveKind.ALL_GATHER, num_bytes, batch.tensor)


WORD_EMBEDDINGS = "word embeddings"
"""The parameter that the embedding and the last stage share."""

NORMS = {"layer_norm": "layer norm", "rms_norm": "RMS norm"}
"""Names of norms in the names of ops."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """Word and learned position embeddings of the first stage, and their dropout."""

    vocab: int
    tied: bool
    is_unit: bool = False
    learned_positions: bool = True
    drops_out: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the embedding of the tokens, the input of the first layer."""
        y = look_up(tape, self.vocab, tied=WORD_EMBEDDINGS if self.tied else "")
        if self.learned_positions:
            y = positions(tape, y)
        return dropout(tape, y, "embedding dropout") if self.drops_out else y


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """Multi-token prediction: each module predicts one more token, from the previous one's output.

    A module normalizes this output and the embedding of the next token, projects their
    concatenation to the hidden size, and runs a transformer layer and a norm. Modules share the
    embedding table, but not their layers and norms.
    """

    num_modules: int
    layer: Block
    embedding: Embedding
    normalization: Normalization
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record all modules, which start from the final norm's output; join it and theirs."""
        states = [x]
        for _ in range(self.num_modules):
            states.append(self._module(tape, states[-1]))
        return concat_rows(tape, tuple(states), "hidden states")

    def _module(self, tape: Tape, x: Tensor) -> Tensor:
        token = self.embedding.forward(tape, x)
        with tape.region(TOKEN_PREDICTION):
            normed = self._norm(tape, token, "embedding"), self._norm(tape, x, "hidden")
            both = concat(tape, normed, "MTP embedding and hidden")
            name = "MTP projection"
            y = column_linear(tape, both, tape.microbatch.hidden, name, bias=False)
            y = gather_columns(tape, y, f"{name} gather")
            layer_output = self.layer.forward(tape, y)
            assert layer_output is not None, "a layer returns hidden states"
            return self._norm(tape, layer_output, "final")

    def _norm(self, tape: Tape, x: Tensor, label: str) -> Tensor:
        return norm(tape, x, f"MTP {label} {NORMS[self.normalization]}", self.normalization)


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """The norm after the last layer, and before token prediction.

    Megatron-LM places it in the chunk of the last layer (`has_final_layernorm_in_this_stage`).
    """

    normalization: Normalization
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        name = f"final {NORMS[self.normalization]}"
        return norm(tape, x, name, self.normalization, is_checkpointed=False)


@dataclass(frozen=True, slots=True)
class InputCopy:
    """The copy of its input that a chunk without layers makes.

    Megatron-LM's `TransformerBlock` clones it, because a chunk may not return its input. The
    pipeline saves the input too.

    Args:
        num_states: hidden states of the input: 1, and 1 for each module of token prediction in
            earlier chunks.
    """

    num_states: int = 1
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        if self.num_states > 1:
            x = tape.tensor(x.name, self.num_states * x.rows, x.width)
            tape.with_gradient.add(x)
        return copy(tape, x, "copy of the chunk's input")


@dataclass(frozen=True, slots=True)
class Head:
    """The final norm, the output layer and the loss. Predicted tokens share the output layer.

    Args:
        vocab: size of the vocabulary.
        tied: the output layer has the weights of the embedding.
        in_place_cross_entropy: as the scenario's field.
        is_unit: as in `tape.Block`.
        normalization: of the final norm; None if it is a block of its own.
        num_predictions: modules of token prediction, whose outputs are rows of the input.
    """

    vocab: int
    tied: bool
    in_place_cross_entropy: bool = True
    is_unit: bool = False
    normalization: Normalization | None = "layer_norm"
    num_predictions: int = 0

    def forward(self, tape: Tape, x: Tensor) -> None:
        y = FinalNorm(self.normalization).forward(tape, x) if self.normalization else x
        states: tuple[Tensor, ...] = (y,)
        if self.num_predictions:
            number = 1 + self.num_predictions
            joined = tape.tensor(x.name, number * x.rows, x.width)
            tape.with_gradient.add(joined)
            states = split_rows(tape, joined, number, "hidden states")
        # The losses of predicted tokens come first (`process_mtp_loss`).
        for number, hidden in enumerate((*states[1:], states[0])):
            self._loss(tape, hidden, holds_weight=number == 0)

    def _loss(self, tape: Tape, x: Tensor, *, holds_weight: bool) -> None:
        if tape.microbatch.kernels.loss_chunks > 1 and not tape.microbatch.is_frozen:
            self._loss_in_chunks(tape, x, holds_weight=holds_weight)
            return
        logits = column_linear(
            tape,
            x,
            self.vocab,
            "logits",
            "output layer",
            bias=False,
            tied=WORD_EMBEDDINGS if self.tied else "",
            holds_weight=holds_weight,
            in_fp8=False,
            has_userbuffers=False,
        )
        cross_entropy(tape, logits, in_place=self.in_place_cross_entropy)

    def _loss_in_chunks(self, tape: Tape, x: Tensor, *, holds_weight: bool) -> None:
        """Record chunks of tokens, each with output layer, loss and backward pass of both.

        Gradients of hidden states and of the weight gather in fp32. Source: torchtitan's
        ChunkedLossWrapper (components/loss.py), and FSDP2 without synchronization.
        """
        batch, wide = tape.microbatch, x.elements * FP32_BYTES
        chunks = math.gcd(batch.kernels.loss_chunks, batch.seq_length)
        kernels, length = replace(batch.kernels, loss_chunks=1), batch.seq_length // chunks
        part = Tape(replace(batch, seq_length=length, kernels=kernels, adds_gradients=True))
        self._loss(part, part.tensor(x.name, x.rows // chunks, x.width), holds_weight=holds_weight)
        emits = [node.forward for node in part.nodes] + [node.backward for node in part.nodes[::-1]]
        kept, parameters = tape.tensor("gradient of chunks", x.rows, x.width), part.parameters
        held_bytes = wide + FP32_BYTES * sum(weight.elements for weight in parameters)
        size, name = kept.num_bytes, "loss in chunks"

        def alone(op: Op) -> Op:
            """Hold what the op saves or reads as long as it runs: the next chunk has its own."""
            tensors = () if op.counts_saved else (*op.saves, *op.reads)
            all_bytes = held_bytes + sum(tensor.num_bytes for tensor in tensors)
            return op.replace(saves=(), reads=(), holds_bytes=op.holds_bytes + all_bytes)

        def forward(order: IssueOrder) -> None:
            with order.changing(alone):
                for emit in emits * chunks:
                    emit(order)
            order.compute(elementwise("gradient of chunks to fp32", size, wide))
            order.compute(elementwise(kept.name, wide, size, saves=(kept,)))

        backward = (gradient(name, size, size, reads=(kept,)),)
        tape.record(name, (x,), (), forward, backward, parameters=tuple(parameters))


# Cuts a model into chunks, one for each virtual stage.

VirtualStages = tuple[tuple[int, ...], ...]
OfStages = tuple[Parameters, ...]


@hashed_once
@dataclass(frozen=True)
class ModelChunks:
    """The chunks of a model: the different chunks, and the number of each virtual stage's chunk."""

    different: tuple[Chunk, ...]
    numbers: tuple[int, ...]

    def parameters(self, virtual_stages: VirtualStages, batch: Microbatch) -> OfStages:
        """Count the parameters of one rank of each stage, which has some virtual stages."""
        return _parameters(_ModelRun((self, virtual_stages), batch))


@functools.lru_cache(maxsize=4096)
def cut_into_chunks(
    model: Chunk, contents: ChunkContents, first: Block | None = None, copies: int = 1
) -> ModelChunks:
    """Cut a model into chunks; with token prediction, it is the last block of the model but one.

    A block that is not a layer joins the chunk of the next layer; blocks after the last layer join
    its chunk. A first chunk without layers has only the first block, a last one the last block.
    Other chunks without layers copy their input. Block `first` is put before each chunk.
    """
    blocks, layers, prediction = [*model.blocks], contents.layers, contents.prediction
    last = len(layers) - 1
    ends = [1, *(place + 1 for place, block in enumerate(blocks) if block.is_unit)]
    ends[-1] = len(blocks) - (1 if prediction is None else 2)
    cuts = [0, *(ends[number] for number in itertools.accumulate(layers))]
    if prediction is not None:
        cuts[prediction + 1 :] = [len(blocks) - 1] * (last + 1 - prediction)
    cuts[-1] = len(blocks)
    before = [] if first is None else [first]
    chunks = []
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        copied: list[Block] = []
        if number and not layers[number] and (number < last or prediction is not None):
            copied = [InputCopy(contents.received_states(number))]
        chunks.append(chunk_of([*before, *copied, *blocks[start:end]]))
    return ModelChunks(tuple(dict.fromkeys(chunks)), copies * number_distinct(chunks))


class _ModelRun(NamedTuple):
    block: tuple[ModelChunks, VirtualStages]
    microbatch: Microbatch


@for_any_length
def _parameters(run: _ModelRun) -> OfStages:
    model, virtual_stages = run.block
    stages = [tuple(model.numbers[number] for number in numbers) for numbers in virtual_stages]
    parameters_of = {
        chunks: parameters(tuple(model.different[number] for number in chunks), run.microbatch)
        for chunks in set(stages)
    }
    return tuple(parameters_of[chunks] for chunks in stages)


def number_distinct(values: Sequence[Any]) -> tuple[int, ...]:
    """Number the different values by first appearance; return the number of each value."""
    objects, numbers = {id(value): value for value in values}, dict[Any, int]()  # few: hashed once
    number_of = {key: numbers.setdefault(each, len(numbers)) for key, each in objects.items()}
    return tuple([number_of[id(value)] for value in values])
