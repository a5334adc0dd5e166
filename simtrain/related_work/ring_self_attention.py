"""Ring self-attention as published, before kernels were fused: scores of all pairs are saved."""

from __future__ import annotations

from typing import cast

from simtrain.scenario.parallelism import (
    AttentionSteps,
    ContextExchange,
    TensorT,
)


class RingSelfAttention(ContextExchange):
    """Ring self-attention (Li et al. 2021, "Sequence Parallelism: Long Sequence Training from
    System Perspective", Section 3.1), as in Colossal-AI's `TransformerSelfAttentionRing`.

    Each rank has one slice, and scores all pairs of its queries with all keys, masked ones
    included. The published layer has as many key heads as query heads.
    """

    name = "ring_self_attention"
    summary = (
        "(Li et al. 2021) passes keys around a ring for the scores, and then values for the "
        "output, without fused attention and without overlap"
    )
    is_fused = False
    slices = 1
    takes_groups = False
    takes_mamba = False

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        from simtrain.related_work.ring_ops import score_around_ring  # it imports the scenario

        return cast(TensorT, score_around_ring(steps))
