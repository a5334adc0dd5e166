"""The section `model` of a scenario: the transformer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from simtrain.base.strict_yaml import FieldError
from simtrain.scenario.section import MAX_COUNT, Count, CountOrZero, Section

MAMBA, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"
"""Letters of a pattern, as Megatron-Core's `Symbols`."""
_NAMES = {MAMBA: "Mamba-2", ATTENTION: "attention", MLP: "an MLP", EXPERTS: "experts"}
_NOT_SIMULATED = {
    "G": "a gated delta net",
    "D": "sparse attention (DSA)",
    "C": "compressed sparse attention",
    "H": "hybrid compressed attention",
    "W": "attention with a window",
    "+": "latent attention",
    "/": "the start of token prediction",
    "|": "the end of a pipeline stage",
    "[": "a group of layers",
    "]": "a group of layers",
}
"""What Megatron-Core means by other letters (core/models/hybrid)."""
_FIX = "write one letter per layer: " + ", ".join(f"{key} {name}" for key, name in _NAMES.items())


class Mamba(Section):
    """The Mamba-2 layers of a hybrid model (Dao and Gu 2024), with Megatron-LM's names.

    num_heads: number of heads; by default (null), heads with 2 x hidden_size channels together.
    head_dim: channels of a head; 64 by default.
    state_dim: numbers that each channel's state has; 128 by default.
    num_groups: number of groups of heads that share B and C, the inputs and outputs of states; 8 by
        default.
    chunk_size: tokens that the scan computes at once by products; 128 by default, as in
        Megatron-LM.
    """

    num_heads: Count | None = Field(default=None, examples=[128])
    head_dim: Count = Field(default=64, examples=[64])
    state_dim: Count = Field(default=128, examples=[128])
    num_groups: Count = Field(default=8, examples=[8])
    chunk_size: Count = Field(default=128, examples=[256])


def checked_pattern(pattern: str) -> str:
    """Return a pattern of layers if all of its letters are simulated.

    Raises:
        FieldError: a letter stands for another block, or for none.
    """
    for letter in pattern:
        if letter not in _NAMES:
            meaning = _NOT_SIMULATED.get(letter)
            said = f", {meaning}, which is not simulated" if meaning else ", which is no layer"
            raise FieldError((), f"the pattern has {letter!r}{said}", _FIX)
    return pattern


LoraModule = Literal[
    "linear_qkv",
    "linear_proj",
    "linear_fc1",
    "linear_fc2",
    "linear_q",
    "linear_k",
    "linear_v",
    "linear_fc1_gate",
    "linear_fc1_up",
]
MODULES: tuple[LoraModule, ...] = get_args(LoraModule)
CANONICAL_PARTS: Mapping[str, tuple[LoraModule, ...]] = MappingProxyType(
    {
        "linear_qkv": ("linear_q", "linear_k", "linear_v"),
        "linear_fc1": ("linear_fc1_gate", "linear_fc1_up"),
    }
)
"""Modules of canonical LoRA, by the module of the fused weight."""


def _ordered(modules: tuple[LoraModule, ...]) -> tuple[LoraModule, ...]:
    """Sort modules, so that equivalent adapters compare equal."""
    if not modules or len({*modules}) < len(modules):
        raise FieldError((), "is empty, or lists a module twice", "write each module once")
    for whole, parts in CANONICAL_PARTS.items():
        both = [part for part in parts if part in modules and whole in modules]
        if both:
            message = f"lists {whole} and {both[0]}, an adapter for a part of the same weight"
            raise FieldError((), message, f"remove {whole} or {', '.join(both)}")
    return tuple(module for module in MODULES if module in modules)


class Lora(Section):
    """Fine-tuning with low-rank adapters (LoRA). All other parameters are frozen.

    Frozen parameters have no gradients and no optimizer states. The scale of the adapters (alpha)
    affects neither time nor memory.

    rank: columns of the first and rows of the second matrix of each adapter (Megatron-Bridge's
        dim).
    modules: linear layers with an adapter, by Megatron-Core's names; all four by default:
        linear_qkv (queries, keys and values), linear_proj (after attention), linear_fc1 (the first
        product of the MLP, with the gate), linear_fc2 (the second one). linear_q, linear_k,
        linear_v, linear_fc1_gate and linear_fc1_up have an adapter for a part of a fused weight
        (canonical LoRA; Hugging Face's q_proj, k_proj, v_proj, gate_proj and up_proj). Stacks with
        separate projections have an adapter for each part of linear_qkv and linear_fc1.
    dropout: dropout rate of the adapters' inputs, 0 by default. A rate of 0 runs no kernel; all
        other rates take the same time and memory.
    """

    rank: Count = Field(examples=[16])
    modules: Annotated[tuple[LoraModule, ...], Field(strict=False), AfterValidator(_ordered)] = (
        Field(
            default=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
            examples=["[linear_qkv, linear_proj]"],
        )
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, examples=[0.1])

    def adapts(self, module: str) -> bool:
        """Whether a linear layer, by the module of its fused weight, has an adapter."""
        return not {module, *CANONICAL_PARTS.get(module, ())}.isdisjoint(self.modules)


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
    """

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

    def has_layer(self, number: int) -> bool:
        return number >= self.first_dense_layers and number % self.layer_frequency == 0


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
        return self.tied_embeddings or self.mtp_num_layers > 0

    @property
    def has_dense_layers(self) -> bool:
        if self.layer_pattern is not None:
            return MLP in self.layer_pattern
        return not all(map(self.layer_has_experts, range(self.num_layers)))

    def layer_has_experts(self, number: int) -> bool:
        if self.layer_pattern is not None:
            return self.layer_pattern[number : number + 1] == EXPERTS
        return self.experts is not None and self.experts.has_layer(number)

    @property
    def num_mamba_heads(self) -> int:
        if self.mamba is None:
            return 0
        return self.mamba.num_heads or max(1, 2 * self.hidden_size // self.mamba.head_dim)
