"""Layers of hybrid models: Mamba-2, attention, an MLP or experts, each alone.

Source: Megatron-Core's `HybridStack` (core/models/hybrid/hybrid_block.py), `MambaLayer`
(core/ssm/mamba_layer.py) and `MLPLayer`.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Protocol

from simtrain.scenario.model import ATTENTION, EXPERTS, MAMBA, MLP, Model, Normalization
from simtrain.workload.blocks import MambaMixer, add, dropout_add, mamba_mixer, norm
from simtrain.workload.model_ends import NORMS, Layer
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Tape


class TwoSublayers(Protocol):
    """A layer of attention and an MLP, whose halves can be recorded alone."""

    def kept_in_bf16(self) -> TwoSublayers:
        """Return the same layer, whose products stay in bf16."""

    def __hash__(self) -> int:
        """Equal layers share one recording."""

    def with_attention(self, tape: Tape, x: Tensor) -> Tensor:
        """Record attention with its norm and residual."""

    def with_mlp(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the MLP or the experts with their norm and residual."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The attention of a transformer layer, alone."""

    layer: TwoSublayers
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the forward pass."""
        return self.layer.with_attention(tape, x)


@dataclass(frozen=True, slots=True)
class MlpLayer:
    """The MLP or the experts of a transformer layer, alone."""

    layer: TwoSublayers
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the forward pass."""
        return self.layer.with_mlp(tape, x)


@dataclass(frozen=True, slots=True)
class MambaLayer:
    """A Mamba-2 layer: a norm, the mixer, and dropout with the residual.

    Args:
        mixer: its sizes, before tensor parallelism.
        normalization: kind of the norm before the mixer.
        hidden_dropout: whether there is dropout.
        in_bf16: products stay in bf16 in a model in fp8.
        is_unit: as in `tape.Block`.
    """

    mixer: MambaMixer
    normalization: Normalization = "rms_norm"
    hidden_dropout: bool = False
    in_bf16: bool = False
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the forward pass."""
        if self.in_bf16:
            tape.microbatch = replace(tape.microbatch, fp8_recipe="")
        name = f"Mamba {NORMS[self.normalization]}"
        y = norm(tape, x, name, self.normalization, feeds_products=True)
        y = mamba_mixer(tape, y, self.mixer)
        combine = dropout_add if self.hidden_dropout else add
        return combine(tape, (y,), x, "Mamba", bias=False)


@functools.lru_cache(maxsize=1024)
def hybrid_layers(
    model: Model, dense: TwoSublayers, with_experts: TwoSublayers, in_bf16: tuple[int, int]
) -> tuple[tuple[Layer, int], ...]:
    """Return runs of equal layers, one layer for each letter of the model's pattern.

    Args:
        model: with a pattern.
        dense: the attention and the MLP of its layers.
        with_experts: has the experts of its layers.
        in_bf16: numbers of layers at the start and at the end of the model that stay in bf16.
    """
    pattern, (first, last) = model.layer_pattern or "", in_bf16
    kinds = _kinds(model, dense, with_experts, in_bf16=False)
    kept = _kinds(model, dense.kept_in_bf16(), with_experts.kept_in_bf16(), in_bf16=True)
    ends = len(pattern) - last
    layers = [
        (kept if number < first or number >= ends else kinds)[letter]
        for number, letter in enumerate(pattern)
    ]
    return tuple((layer, len([*run])) for layer, run in itertools.groupby(layers))


def _kinds(
    model: Model, dense: TwoSublayers, with_experts: TwoSublayers, *, in_bf16: bool
) -> dict[str, Layer]:
    """Return the layer of each letter that the model can have."""
    kinds: dict[str, Layer] = {
        ATTENTION: AttentionLayer(dense),
        MLP: MlpLayer(dense),
        EXPERTS: MlpLayer(with_experts),
    }
    if mamba := model.mamba:
        sizes = model.num_mamba_heads, mamba.head_dim, mamba.state_dim, mamba.num_groups
        mixer = MambaMixer(*sizes, mamba.chunk_size)
        drops_out = model.hidden_dropout > 0
        kinds[MAMBA] = MambaLayer(mixer, model.normalization, drops_out, in_bf16)
    return kinds
