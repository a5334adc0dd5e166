"""The sizes of a transformer layer on one rank, for the layers in torch."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.scenario import Scenario
from simtrain.scenario.experts import Experts
from simtrain.scenario.model import Model


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one transformer layer on one rank; lengths in elements.

    `seq_length` counts this rank's tokens of a sequence, which `context` ranks divide; `groups` the
    heads of keys and values (None: as many as of queries). `is_llama` replaces the paper's layer by
    one with RMS norms, rotary embedding, SwiGLU, and no biases and dropout. It can have `experts`
    instead of an MLP, divided over the tensor-parallel ranks.
    """

    seq_length: int
    microbatch: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    tensor: int
    sequence_parallel: bool
    element_bytes: int
    gradient_bytes: int
    fused_attention: bool = False
    groups: int | None = None
    is_llama: bool = False
    experts: Experts | None = None
    context: int = 1

    @classmethod
    def of(cls, scenario: Scenario) -> LayerShape:
        """The shape of a scenario's layers on each rank."""
        return cls(
            seq_length=scenario.model.seq_length // scenario.parallelism.context,
            microbatch=scenario.batch.micro,
            hidden=scenario.model.hidden_size,
            heads=scenario.model.num_attention_heads,
            ffn=scenario.model.ffn_hidden_size,
            vocab=scenario.model.vocab_size,
            tensor=scenario.parallelism.tensor,
            sequence_parallel=scenario.parallelism.sequence_parallel,
            element_bytes=scenario.compute_bytes,
            gradient_bytes=scenario.gradient_bytes,
            fused_attention=scenario.attention_backend == "fused",
            groups=scenario.model.num_query_groups,
            is_llama=_is_llama(scenario.model),
            experts=scenario.model.experts,
            context=scenario.parallelism.context,
        )

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch: s · b."""
        return self.seq_length * self.microbatch

    @property
    def local_tokens(self) -> int:
        """Tokens in layer norms and dropouts on this rank: s · b, or s · b / t."""
        return self.tokens // self.tensor if self.sequence_parallel else self.tokens

    @property
    def local_heads(self) -> int:
        """Attention heads on this rank: a / t."""
        return self.heads // self.tensor

    @property
    def local_groups(self) -> int:
        """Heads of keys and of values on this rank."""
        return (self.groups or self.heads) // self.tensor

    @property
    def head_size(self) -> int:
        """Width of one head: h / a."""
        return self.hidden // self.heads


def _is_llama(model: Model) -> bool:
    options = model.activation, model.normalization, model.position_embedding, model.biases
    drops_out = model.hidden_dropout or model.attention_dropout
    return options == ("swiglu", "rms_norm", "rope", False) and not drops_out
