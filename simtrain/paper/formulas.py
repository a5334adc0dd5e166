"""The paper's formulas, an independent check of the values computed from ops and schedules.

Only reproductions use them. Names are the paper's (Table 1); m is the number of interleaved stages.
Bytes are Fractions, so comparisons are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from simtrain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Formulas:
    """The variables of Table 1 for a scenario, and the paper's formulas."""

    a: int
    b: int
    h: int
    layers: int
    p: int
    s: int
    t: int
    v: int
    m: int
    sequence: bool
    recompute: str

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Read the variables from a scenario."""
        model, split = scenario.model, scenario.parallelism
        return cls(
            a=model.num_attention_heads,
            b=scenario.batch.micro,
            h=model.hidden_size,
            layers=model.num_layers,
            p=split.pipeline,
            s=model.seq_length,
            t=split.tensor,
            v=model.vocab_size,
            m=split.interleave,
            sequence=split.sequence_parallel,
            recompute=scenario.recompute.strategy,
        )

    @property
    def sbh(self) -> int:
        """Elements of a layer's input."""
        return self.s * self.b * self.h

    @property
    def attention_factor(self) -> Fraction:
        """5as/h: activations of the attention core, in units of sbh bytes."""
        return Fraction(5 * self.a * self.s, self.h)

    @property
    def layer_bytes(self) -> Fraction:
        """Activation memory of a layer: Table 2, which includes Equations 1, 2 and 4."""
        if self.recompute == "full":
            return Fraction(2 * self.sbh)
        linear = Fraction(34, self.t) if self.sequence else 10 + Fraction(24, self.t)
        attention = self.attention_factor / self.t if self.recompute == "none" else 0
        return self.sbh * (linear + attention)

    @property
    def layer_flops(self) -> Fraction:
        """FLOPs of a layer, forward and backward: Table 2."""
        factor = 96 if self.recompute == "full" else 72
        attention = Fraction(2, 9) if self.recompute == "selective" else Fraction(1, 6)
        attention *= Fraction(self.s, self.h)
        return Fraction(factor * self.sbh * self.h, self.t) * (1 + attention)

    @property
    def layer_communicated_bytes(self) -> Fraction:
        """Bytes that each rank sends per layer, forward and backward: Table 2."""
        factor = 24 if self.recompute == "full" else 16
        return factor * Fraction(self.t - 1, self.t) * self.sbh

    @property
    def first_stage_bytes(self) -> Fraction:
        """Activations of the first stage's layers: Equations 5 and 6, times 1 + (p-1)/(pm)."""
        interleaving = 1 + Fraction(self.p - 1, self.p * self.m) if self.m > 1 else 1
        return self.layer_bytes * self.layers * interleaving

    @property
    def embedding_dropout_bytes(self) -> Fraction:
        """Masks of the embedding's dropout on the first stage (Section 4.3): sbhp/t."""
        return Fraction(self.sbh * self.p, self.t if self.sequence else 1)

    @property
    def ends_bytes(self) -> Fraction:
        """Activations that Section 4.3 adds to the first stage under sequence parallelism."""
        head = 4 * self.sbh * (1 + Fraction(self.v, self.h)) / self.t if self.p == 1 else 0
        return self.embedding_dropout_bytes + head
