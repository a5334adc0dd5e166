"""The section `model` of a scenario: the transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from simtrain.scenario.experts import Experts
from simtrain.scenario.lora import Lora
from simtrain.scenario.mamba import EXPERTS, MAMBA, MLP, Mamba, checked_pattern
from simtrain.scenario.other_names import MODEL_NAMES
from simtrain.scenario.section import MAX_COUNT, Count, Section

# Every layer is recorded. The most layers take 7 s and 0.7 GB; the most modules of multi-token
# prediction take 0.5 s.
# Planning takes time for each layer: 10,000 layers take seconds, and no model has 1,000.
_MAX_LAYERS, _MAX_MODULES = 10_000, 100

Activation = Literal["gelu", "swiglu", "geglu", "squared_relu"]
Normalization = Literal["layer_norm", "rms_norm"]
PositionEmbedding = Literal["learned", "rope", "none"]
ParallelAttentionMlp = Literal["none", "one_norm", "two_norms"]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]


class LatentAttention(Section):
    """Multi-head latent attention (DeepSeek-V2 and V3), with Megatron-LM's names.

    Queries, keys and values are projected up from latents. `model.qk_norm` adds a norm of the
    latents. A query or key head has channels without and with a rotary position embedding, for any
    `model.position_embedding`.

    q_lora_rank: channels of the query latent; by default (null), queries are projected from the
        hidden states.
    kv_lora_rank: channels of the latent of keys and values.
    qk_head_dim: channels of a query or key head without position embedding; 128 by default.
    qk_pos_emb_head_dim: channels of a query or key head with rotary position embedding; 64 by
        default. All key heads share them.
    v_head_dim: channels of a value head; 128 by default.
    """

    q_lora_rank: Count | None = Field(default=None, examples=[1536])
    kv_lora_rank: Count = Field(examples=[512])
    qk_head_dim: Count = Field(default=128, examples=[128])
    qk_pos_emb_head_dim: Count = Field(default=64, examples=[64])
    v_head_dim: Count = Field(default=128, examples=[128])

    @property
    def query_size(self) -> int:
        """Channels of a query or key head."""
        return self.qk_head_dim + self.qk_pos_emb_head_dim


class Model(Section):
    """The transformer to train; by default, the paper's GPT.

    num_layers: number of transformer layers.
    hidden_size: channels of a token between layers.
    num_attention_heads: number of query heads.
    seq_length: tokens of a sequence.
    ffn_hidden_size: columns of the first product of the MLP; 4 x hidden_size by default. A gated
        activation (swiglu, geglu) has two products of this size, gate and up.
    num_query_groups: number of key heads and of value heads; num_attention_heads by default.
    kv_channels: channels of a query, key or value head; hidden_size / num_attention_heads by
        default.
    vocab_size: rows of the embedding table, with padding; 51200 by default.
    tied_embeddings: true (default) if the output layer shares the weights of the embedding (GPT-2);
        false if it has separate weights.
    activation: nonlinearity of the MLP; gelu by default. swiglu and geglu are gated.
    normalization: kind of the norms before attention, before the MLP and after the last layer;
        layer_norm by default.
    position_embedding: kind of position embedding. learned (default) adds a trained table to the
        input, rope rotates queries and keys, and none does neither.
    qk_norm: true adds a norm over the channels of each query head and each key head; false by
        default.
    latent_attention: sizes of multi-head latent attention (Megatron-LM's --multi-latent-attention),
        which has no query groups and no kv_channels; null (default) for plain attention.
    attention_window: number of tokens that a query attends to, including itself; by default (null)
        all earlier tokens. Megatron-LM's --window-size w,0 is w + 1 here; Hugging Face's
        sliding_window has the same value.
    full_attention_every: with attention_window, every nth layer attends to all tokens
        (Megatron-LM's --window-attn-skip-freq): 2 in Gemma 2 and gpt-oss, 6 in Gemma 3. By default
        (null), every layer has the window.
    biases: true (default) if every linear layer except the output layer has a bias.
    qkv_biases: true if the linear layer that computes queries, keys and values has a bias; equal to
        `biases` by default.
    parallel_attention_mlp: order of attention and MLP. none (default) runs attention, then the MLP.
        The other values feed both the same input and add both outputs to it in one sum (Transformer
        Engine's argument of this name): one_norm shares one norm (GPT-J, Cohere, Falcon-7B),
        two_norms has one norm each (GPT-NeoX, Falcon-40B). Attention and MLP keep separate
        collectives, as in Transformer Engine.
    mtp_num_layers: number of modules of multi-token prediction after the last layer (DeepSeek-V3,
        Megatron-LM's --mtp-num-layers); 0 by default. Each module predicts one more token with
        norms, a projection, a transformer layer, and another pass through output layer and loss.
        The modules run on the last stage, or where parallelism.layout has m. This stage then also
        holds the embedding. `num_layers` does not count them.
    hidden_dropout, attention_dropout: dropout rate, 0.1 by default. A rate of 0 runs no kernel and
        saves no mask; all other rates take the same time and memory. Fused attention applies
        dropout within its kernel, at no cost.
    experts: experts that replace the MLP in some or all layers; null (default) for a dense model.
    lora: adapters (LoRA) that are trained instead of the model, which is frozen; null (default) to
        train the model.
    layer_pattern: one letter for each layer of a hybrid model, first to last (Megatron-LM's
        --hybrid-override-pattern): M is a Mamba-2 layer, * attention, - an MLP and E experts, each
        alone with its norm and residual. By default (null), every layer has attention and an MLP.
    mamba: sizes of the Mamba-2 layers of layer_pattern; Megatron-LM's defaults if it has some.
    """

    other_names: ClassVar[Mapping[str, str]] = MODEL_NAMES

    num_layers: Annotated[int, Field(ge=1, le=_MAX_LAYERS)] = Field(examples=[48])
    hidden_size: Count = Field(examples=[6144])
    num_attention_heads: Count = Field(examples=[64])
    ffn_hidden_size: Count = Field(
        default_factory=lambda model: 4 * model["hidden_size"], examples=[24576]
    )
    seq_length: Count = Field(examples=[2048])
    vocab_size: Count = Field(default=51200, examples=[51200])
    tied_embeddings: bool = Field(default=True, examples=["true"])
    num_query_groups: Count = Field(
        default_factory=lambda model: model["num_attention_heads"], examples=[8]
    )
    kv_channels: Count = Field(
        default_factory=lambda model: max(1, model["hidden_size"] // model["num_attention_heads"]),
        examples=[128],
    )
    activation: Activation = Field(default="gelu", examples=["swiglu"])
    normalization: Normalization = Field(default="layer_norm", examples=["rms_norm"])
    qk_norm: bool = Field(default=False, examples=["true"])
    latent_attention: LatentAttention | None = Field(default=None, examples=["{kv_lora_rank: 512}"])
    attention_window: Count | None = Field(default=None, examples=[4096])
    full_attention_every: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = Field(
        default=None, examples=[2]
    )
    position_embedding: PositionEmbedding = Field(default="learned", examples=["rope"])
    biases: bool = Field(default=True, examples=["false"])
    qkv_biases: bool = Field(default_factory=lambda model: model["biases"], examples=["true"])
    parallel_attention_mlp: ParallelAttentionMlp = Field(default="none", examples=["one_norm"])
    mtp_num_layers: Annotated[int, Field(ge=0, le=_MAX_MODULES)] = Field(default=0, examples=[1])
    hidden_dropout: DropoutRate = Field(default=0.1, examples=[0])
    attention_dropout: DropoutRate = Field(default=0.1, examples=[0])
    experts: Experts | None = Field(default=None, examples=["{num: 8, top_k: 2, ...}"])
    lora: Lora | None = Field(default=None, examples=["{rank: 16}"])
    layer_pattern: Annotated[str, Field(min_length=1), AfterValidator(checked_pattern)] | None = (
        Field(default=None, examples=["M-M*-"])
    )
    mamba: Mamba | None = Field(
        default_factory=lambda model: Mamba() if MAMBA in (model["layer_pattern"] or "") else None,
        examples=["{num_heads: 128, ...}"],
    )

    @property
    def shares_embedding(self) -> bool:
        """Whether the first and the last stage both hold the embedding table."""
        return self.tied_embeddings or self.mtp_num_layers > 0

    @property
    def has_dense_layers(self) -> bool:
        """Whether at least one layer has an MLP instead of experts."""
        if self.layer_pattern is not None:
            return MLP in self.layer_pattern
        return not all(map(self.layer_has_experts, range(self.num_layers)))

    def layer_has_experts(self, number: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        if self.layer_pattern is not None:
            return self.layer_pattern[number : number + 1] == EXPERTS
        return self.experts is not None and self.experts.has_layer(number)

    @property
    def num_mamba_heads(self) -> int:
        """Heads of each Mamba-2 layer; 0 without any."""
        if self.mamba is None:
            return 0
        return self.mamba.num_heads or max(1, 2 * self.hidden_size // self.mamba.head_dim)
