"""The section `model.experts`: experts of a layer, and how the router uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simtrain.scenario.other_names import EXPERT_NAMES
from simtrain.scenario.section import Count, CountOrZero, Section


class Experts(Section):
    """Experts that replace the MLP of a layer; a router sends each token to top_k of them.

    Names and meaning follow Megatron-LM (core/transformer/moe):

    num: number of experts of a layer, over all ranks.
    top_k: number of experts that process each token.
    ffn_hidden_size: columns of the first product of one expert; a gated activation has two products
        of this size, as in `model.ffn_hidden_size`.
    shared_ffn_hidden_size: columns of the shared expert, which processes every token; 0 (default)
        for no shared expert.
    shared_gate: true if a gate of one column scales the output of the shared expert (Qwen2-MoE);
        false by default.
    first_dense_layers: number of layers at the start of the model with an MLP instead of experts; 0
        by default, 3 in DeepSeek-V3.
    layer_frequency: after the first dense layers, only layers with a number divisible by this have
        experts, counted from 0 (--moe-layer-freq). The default 1 gives every layer experts.
    capacity_factor: tokens that each expert takes from each rank, as a multiple of the mean;
        further tokens are dropped, missing ones are padded (--moe-pad-expert-input-to-capacity). By
        default (null), no token is dropped.
    router_dtype: dtype of the router's product and of its gradients; bf16 by default.
    router_score: softmax (default) over the chosen experts, or sigmoid of every expert, as in
        DeepSeek-V3 (--moe-router-score-function).
    router_bias: true adds a bias to the scores that choose the experts, which balances their load
        (--moe-router-enable-expert-bias); false by default.
    router_groups, router_group_top_k: number of groups of experts, and number of groups to which a
        token goes (--moe-router-num-groups, --moe-router-group-topk). By default (null), a token
        goes to experts of any group.
    imbalance: tokens of the most loaded expert-parallel rank, as a multiple of the mean; 1.0 by
        default. All simulated ranks have this load.
    imbalance_seed: seed of the loads of the layers. By default (null) all layers have the same
        imbalance. With a seed each layer's excess above the mean is drawn from an exponential
        distribution, which assumes least of a positive number with a known mean: `imbalance` - 1.
    """

    other_names: ClassVar[Mapping[str, str]] = EXPERT_NAMES

    num: Count = Field(examples=[8])
    top_k: Count = Field(examples=[2])
    ffn_hidden_size: Count = Field(examples=[14336])
    shared_ffn_hidden_size: CountOrZero = Field(default=0, examples=[5632])
    shared_gate: bool = Field(default=False, examples=["true"])
    first_dense_layers: CountOrZero = Field(default=0, examples=[3])
    layer_frequency: Count = Field(default=1, examples=[2])
    capacity_factor: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        default=None, examples=[1.25]
    )
    router_dtype: Literal["bf16", "fp32"] = Field(default="bf16", examples=["fp32"])
    router_score: Literal["softmax", "sigmoid"] = Field(default="softmax", examples=["sigmoid"])
    router_bias: bool = Field(default=False, examples=["true"])
    router_groups: Count | None = Field(default=None, examples=[8])
    router_group_top_k: Count | None = Field(default=None, examples=[4])
    imbalance: Annotated[float, Field(ge=1, le=1e6)] = Field(default=1.0, examples=[1.2])
    imbalance_seed: CountOrZero | None = Field(default=None, examples=[1])

    def has_layer(self, number: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        return number >= self.first_dense_layers and number % self.layer_frequency == 0
