"""The section of a model that says which layers have experts, and how tokens find them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simtrain.scenario.other_names import EXPERT_NAMES
from simtrain.scenario.section import Section

_MAX_COUNT = 2**31 - 1
_Count = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
_Number = Annotated[int, Field(ge=0, le=_MAX_COUNT)]


class Experts(Section):
    """Experts instead of the MLP of a layer: a router sends each token to a few of them.

    Names and meaning are Megatron-LM's (core/transformer/moe):

    num: experts of a layer, on all ranks together.
    top_k: experts to which each token goes.
    ffn_hidden_size: size of one expert, as the model's `ffn_hidden_size` is that of a dense MLP.
    shared_ffn_hidden_size: size of an expert that takes every token, too; 0 for none.
    shared_gate: a gate of one column weighs the shared expert (Qwen2-MoE).
    first_dense_layers: layers without experts at the start of the model (3 in DeepSeek-V3).
    layer_frequency: layers whose number is a multiple of it have experts (--moe-layer-freq); 1 for
        all.
    capacity_factor: each expert takes this multiple of its mean load from each rank: more tokens
        are dropped, and missing ones are padding (--moe-pad-expert-input-to-capacity). Without it
        no token is dropped.
    router_dtype: dtype of the router's product and of its gradients.
    imbalance: load of the expert rank with the most tokens over the mean; the simulated ranks have
        it.
    """

    other_names: ClassVar[Mapping[str, str]] = EXPERT_NAMES

    num: _Count = Field(examples=[8])
    top_k: _Count = Field(examples=[2])
    ffn_hidden_size: _Count = Field(examples=[14336])
    shared_ffn_hidden_size: _Number = Field(default=0, examples=[5632])
    shared_gate: bool = Field(default=False, examples=["true"])
    first_dense_layers: _Number = Field(default=0, examples=[3])
    layer_frequency: _Count = Field(default=1, examples=[2])
    capacity_factor: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        default=None, examples=[1.25]
    )
    router_dtype: Literal["bf16", "fp32"] = Field(default="bf16", examples=["fp32"])
    imbalance: Annotated[float, Field(ge=1, le=1e6)] = Field(default=1.0, examples=[1.2])

    def has_layer(self, number: int) -> bool:
        """Whether the layer with this number, from 0 up, has experts."""
        return number >= self.first_dense_layers and number % self.layer_frequency == 0
