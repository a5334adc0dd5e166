"""The sizes that every op of a layer is made of, for one rank."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.scenario import Scenario
from simtrain.workload.ops import Gemm, Phase, SavedTensor

MASK_BYTES = 1
"""A dropout mask keeps one byte an element (paper, Section 4)."""
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one transformer layer on one tensor-parallel rank; lengths in elements."""

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

    @classmethod
    def of(cls, scenario: Scenario) -> LayerShape:
        """The shape that a scenario's layers have on each rank."""
        return cls(
            seq_length=scenario.model.seq_length,
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
        )

    @property
    def variant(self) -> tuple[bool, ...]:
        """All of it but sizes: shapes of one variant have the same ops and collectives."""
        return self.tensor > 1, self.sequence_parallel, self.fused_attention

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch: s · b."""
        return self.seq_length * self.microbatch

    @property
    def local_tokens(self) -> int:
        """Tokens that layer norms and dropouts see on this rank: s · b, or s · b / t."""
        return self.tokens // self.tensor if self.sequence_parallel else self.tokens

    @property
    def local_heads(self) -> int:
        """Attention heads on this rank: a / t."""
        return self.heads // self.tensor

    @property
    def head_size(self) -> int:
        """Width of one head: h / a."""
        return self.hidden // self.heads

    @property
    def scores(self) -> int:
        """Attention scores on this rank: b · a/t · s²."""
        return self.microbatch * self.local_heads * self.seq_length**2

    @property
    def activation_bytes(self) -> int:
        """Bytes of a layer's whole input or output: s · b · h elements."""
        return self.element_bytes * self.tokens * self.hidden

    def product(
        self,
        name: str,
        m: int,
        n: int,
        k: int,
        phase: Phase,
        *,
        batch: int = 1,
        weight: bool = False,
        saved: tuple[SavedTensor, ...] = (),
        releases: tuple[str, ...] = (),
    ) -> Gemm:
        """A matrix product whose operands and result are in the compute type."""
        size = self.element_bytes
        return Gemm(
            name,
            m,
            n,
            k,
            phase,
            batch=batch,
            element_bytes=size,
            output_element_bytes=size,
            weight=weight,
            saved=saved,
            releases=releases,
        )

    def saved(self, name: str, elements: int, element_bytes: int | None = None) -> SavedTensor:
        """A tensor kept for the backward pass, in the compute type unless told otherwise."""
        return SavedTensor(name, elements * (element_bytes or self.element_bytes))
