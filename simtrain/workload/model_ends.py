"""The blocks before the first layer and after the last: embedding, token prediction, loss.

Sources of embedding and head: Megatron-LM's `VocabParallelEmbedding`, `Embedding`,
`parallel_lm_logits` and `vocab_parallel_cross_entropy`. Source of multi-token prediction
(DeepSeek-AI 2024, Section 2.2): its core/transformer/multi_token_prediction.py. Rolled tokens,
labels and masks are not counted.

With token prediction, the hidden states of the last layer and of every module are the rows of one
tensor, which the head splits. So a module may be in another chunk than the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from simtrain.scenario.model import Normalization
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
from simtrain.workload.ops import Tensor
from simtrain.workload.recompute import TOKEN_PREDICTION
from simtrain.workload.tape import Tape

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


class Layer(Protocol):
    """A block that maps hidden states to hidden states."""

    def __hash__(self) -> int:
        """Equal layers share one recording."""

    @property
    def is_unit(self) -> bool:
        """Whether its parameters are sharded, gathered and reduced as a unit."""

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the forward pass."""


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """Multi-token prediction: each module predicts one more token, from the previous one's output.

    A module normalizes this output and the embedding of the next token, projects their
    concatenation to the hidden size, and runs a transformer layer and a norm. Modules share the
    embedding table, but not their layers and norms.
    """

    num_modules: int
    layer: Layer
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
            y = self.layer.forward(tape, y)
            return self._norm(tape, y, "final")

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
        """Record the norm."""
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
        """Record the copy."""
        if self.num_states > 1:
            x = tape.tensor(x.name, self.num_states * x.rows, x.width)
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
    is_output_layer: ClassVar[bool] = True

    def forward(self, tape: Tape, x: Tensor) -> None:
        """Record the norm and the losses."""
        y = FinalNorm(self.normalization).forward(tape, x) if self.normalization else x
        states: tuple[Tensor, ...] = (y,)
        if self.num_predictions:
            number = 1 + self.num_predictions
            joined = tape.tensor(x.name, number * x.rows, x.width)
            states = split_rows(tape, joined, number, "hidden states")
        # The losses of predicted tokens come first (`process_mtp_loss`).
        for number, hidden in enumerate((*states[1:], states[0])):
            self._loss(tape, hidden, holds_weight=number == 0)

    def _loss(self, tape: Tape, x: Tensor, *, holds_weight: bool) -> None:
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
            is_output_layer=True,
        )
        cross_entropy(tape, logits, in_place=self.in_place_cross_entropy)
