"""The section of a scenario that says what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simtrain.scenario.experts import Experts
from simtrain.scenario.other_names import OTHER_NAMES
from simtrain.scenario.section import Section

# NCCL and MPI count ranks and CUDA counts grid blocks in 32-bit integers.
MAX_COUNT = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
# Every layer is recorded: so many take 7 s and 0.7 GB, so many modules of further tokens 0.5 s.
_MAX_LAYERS, _MAX_MODULES = 100_000, 100

Activation = Literal["gelu", "swiglu", "geglu", "squared_relu"]
Normalization = Literal["layer_norm", "rms_norm"]
PositionEmbedding = Literal["learned", "rope", "none"]
ParallelAttentionMlp = Literal["none", "one_norm", "two_norms"]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]


class LatentAttention(Section):
    """Multi-head latent attention (DeepSeek-V2 and V3), with Megatron-LM's names.

    Queries, keys and values are projected up from latents. `model.qk_norm` is the norm of the
    latents. Heads of queries and keys have channels with and without a position; the position is
    always rotated, whatever `model.position_embedding` adds to the input.

    q_lora_rank: channels of the queries' latent; null projects queries from the hidden size.
    kv_lora_rank: channels of the latent of keys and values.
    qk_head_dim: channels of a head of queries or keys without position.
    qk_pos_emb_head_dim: rotated channels of a head; those of keys are shared by all heads.
    v_head_dim: channels of a head of values.
    """

    q_lora_rank: Count | None = Field(default=None, examples=[1536])
    kv_lora_rank: Count = Field(examples=[512])
    qk_head_dim: Count = Field(default=128, examples=[128])
    qk_pos_emb_head_dim: Count = Field(default=64, examples=[64])
    v_head_dim: Count = Field(default=128, examples=[128])

    @property
    def query_size(self) -> int:
        """Channels of a head of queries or keys."""
        return self.qk_head_dim + self.qk_pos_emb_head_dim


class Model(Section):
    """A transformer; the defaults are the paper's GPT.

    num_layers: transformer layers.
    hidden_size: channels of a token between layers.
    num_attention_heads: heads of queries.
    seq_length: tokens of a sequence.
    ffn_hidden_size: columns of the first product of the MLP, 4 x hidden_size if not given. A gated
        activation (swiglu, geglu) has two such products, gate and up, of this size each.
    num_query_groups: heads of keys and of values.
    kv_channels: channels of a head of queries, keys or values.
    vocab_size: the padded vocabulary.
    tied_embeddings: the output layer uses the embedding's table (GPT-2); otherwise it has weights
        of its own.
    activation: nonlinearity of the MLP; swiglu and geglu are gated.
    normalization: kind of the norms before attention, before the MLP and after the last layer.
    position_embedding: learned adds a table to the input, rope rotates queries and keys.
    qk_norm: a norm over the channels of each head of queries and of keys.
    latent_attention: queries, keys and values come from latents (Megatron-LM's
        --multi-latent-attention); then there are neither query groups nor kv_channels.
    attention_window: tokens that a query attends to, itself and those before it, or all (null).
        Megatron-LM's --window-size w,0 is w + 1 here, Hugging Face's sliding_window is the same.
    full_attention_every: with an attention_window, every which layer attends to all tokens: with 2
        the second, the fourth, ... (Gemma 2, gpt-oss), with 6 the sixth, ... (Gemma 3). By default
        none does. Megatron-LM's --window-attn-skip-freq.
    biases: all products with weights have biases, except the output layer.
    qkv_biases: biases of the product that computes queries, keys and values; by default as
        `biases`.
    parallel_attention_mlp: whether attention and MLP read the same input and are added to it by one
        sum (Transformer Engine's argument of this name), with one norm for both (GPT-J, Cohere,
        Falcon-7B) or one each (GPT-NeoX, Falcon-40B), or follow each other (none). Each keeps its
        own collectives, as in Transformer Engine.
    mtp_num_layers: modules after the last layer that each predict one more token (DeepSeek-V3's
        multi-token prediction, Megatron-LM's --mtp-num-layers): norms, a projection, a transformer
        layer, and the output layer and loss once more. They are on the last stage, which then has
        the embedding too, and no layers of `num_layers`.
    hidden_dropout, attention_dropout: 0 has neither kernel nor mask; any other rate takes the same
        time and memory. Fused attention drops out within its kernel, at no cost.
    experts: instead of the MLP in some layers, or in all; see `Experts`.
    """

    other_names: ClassVar[Mapping[str, str]] = OTHER_NAMES

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

    @property
    def shares_embedding(self) -> bool:
        """Whether the first and the last stage both have the embedding's table."""
        return self.tied_embeddings or self.mtp_num_layers > 0

    @property
    def has_dense_layers(self) -> bool:
        """Whether some layer has an MLP instead of experts."""
        experts = self.experts
        return experts is None or not all(map(experts.has_layer, range(self.num_layers)))
