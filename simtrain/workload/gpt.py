"""The blocks of a GPT, as the paper draws them (Figures 2 to 6).

Sources of embedding and head: Megatron-LM's `VocabParallelEmbedding`, `Embedding`,
`parallel_lm_logits` and `vocab_parallel_cross_entropy`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from simtrain.scenario import Scenario
from simtrain.workload.blocks import (
    activation,
    attention,
    column_linear,
    cross_entropy,
    dropout,
    dropout_add,
    look_up,
    norm,
    positions,
    row_linear,
)
from simtrain.workload.chunk import Chunk
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Tape

WORD_EMBEDDINGS = "word embeddings"
"""The parameter that a tied model's embedding and output layer share."""


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """Attention and MLP, one after the other, each with a layer norm before and dropout after.

    `hidden`, `heads` and `ffn` are those of the whole layer.
    """

    hidden: int
    heads: int
    ffn: int
    fused_attention: bool = False
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """From the layer's input to its output."""
        y = norm(tape, x, "attention layer norm")
        qkv = column_linear(tape, y, 3 * self.hidden, "QKV", "attention")
        context = attention(tape, qkv, self.hidden // self.heads, fused=self.fused_attention)
        y = row_linear(tape, context, "projection", "attention")
        x = dropout_add(tape, y, x, "attention")

        y = norm(tape, x, "MLP layer norm")
        names = "h→4h", "MLP"
        y = column_linear(tape, y, self.ffn, *names, skip_bias_add=True, output_name="GeLU input")
        y = activation(tape, y, "bias and GeLU", biased="h→4h", output_name="GeLU output")
        y = row_linear(tape, y, "4h→h", "MLP")
        return dropout_add(tape, y, x, "MLP")


@dataclass(frozen=True, slots=True)
class Embedding:
    """Word and position embeddings of the first stage, and their dropout."""

    vocab: int
    tied: bool
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """From tokens to the first layer's input."""
        words = look_up(tape, self.vocab, tied=WORD_EMBEDDINGS if self.tied else "")
        return dropout(tape, positions(tape, words), "embedding dropout")


@dataclass(frozen=True, slots=True)
class Head:
    """The final layer norm, the output layer and the loss."""

    vocab: int
    tied: bool
    in_place_cross_entropy: bool = True
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> None:
        """From the last layer's output to the loss."""
        y = norm(tape, x, "final layer norm")
        tied = WORD_EMBEDDINGS if self.tied else ""
        logits = column_linear(tape, y, self.vocab, "logits", "output layer", bias=False, tied=tied)
        cross_entropy(tape, logits, in_place=self.in_place_cross_entropy)


def gpt_blocks(scenario: Scenario) -> Chunk:
    """All blocks of a scenario's GPT, first to last."""
    model = scenario.model
    return _blocks(
        model.num_layers,
        (model.hidden_size, model.num_attention_heads, model.ffn_hidden_size),
        (model.vocab_size, model.tied_embeddings),
        fused_attention=scenario.attention_backend == "fused",
        in_place_cross_entropy=scenario.memory.in_place_cross_entropy,
    )


@functools.lru_cache(maxsize=1024)
def _blocks(
    num_layers: int,
    layer: tuple[int, int, int],
    words: tuple[int, bool],
    *,
    fused_attention: bool,
    in_place_cross_entropy: bool,
) -> Chunk:
    """The blocks; of equal models they are one object, whose hash is computed once."""
    transformer = TransformerLayer(*layer, fused_attention=fused_attention)
    head = Head(*words, in_place_cross_entropy)
    return Chunk(((Embedding(*words), 1), (transformer, num_layers), (head, 1)))
