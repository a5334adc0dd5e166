"""The sizes of a transformer layer on one rank, for the layers in torch."""

from dataclasses import dataclass
from typing import Self

from simtrain.scenario import Scenario
from simtrain.scenario.model import Experts


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one transformer layer and its vocabulary.

    Args:
        seq_length: tokens per sequence.
        hidden, heads, ffn, vocab: sizes of the whole layer, which `tensor` ranks divide.
        fused_attention: whether the core of attention is one kernel.
        groups: heads of keys and values; None for as many as of queries.
        is_llama: RMS norms, rotary embedding and SwiGLU without biases and dropout, instead of the
            paper's layer.
        experts: experts instead of a Llama layer's MLP, divided over the tensor-parallel ranks.
    """

    seq_length: int
    microbatch: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    tensor: int
    sequence_parallel: bool
    fused_attention: bool = False
    groups: int | None = None
    is_llama: bool = False
    experts: Experts | None = None

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """The shape of a scenario's layers on each rank."""
        model = scenario.model
        options = model.activation, model.normalization, model.position_embedding, model.biases
        drops_out = model.hidden_dropout or model.attention_dropout
        return cls(
            seq_length=model.seq_length,
            microbatch=scenario.batch.micro,
            hidden=model.hidden_size,
            heads=model.num_attention_heads,
            ffn=model.ffn_hidden_size,
            vocab=model.vocab_size,
            tensor=scenario.parallelism.tensor,
            sequence_parallel=scenario.parallelism.sequence_parallel,
            fused_attention=scenario.attention_backend == "fused",
            groups=model.num_query_groups,
            is_llama=options == ("swiglu", "rms_norm", "rope", False) and not drops_out,
            experts=model.experts,
        )

    @property
    def tokens(self) -> int:
        return self.seq_length * self.microbatch

    @property
    def local_tokens(self) -> int:
        return self.tokens // self.tensor if self.sequence_parallel else self.tokens

    @property
    def local_heads(self) -> int:
        return self.heads // self.tensor

    @property
    def local_groups(self) -> int:
        return (self.groups or self.heads) // self.tensor

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads
