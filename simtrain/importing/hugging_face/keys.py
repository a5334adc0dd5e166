"""Keys of Hugging Face's config.json by model type: mapped, without effect, or not modelled.

Source: the configuration classes of transformers (models/*/configuration_*.py), including the
defaults of optional keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simtrain.importing.settings import Effect
from simtrain.importing.table import Table, Word
from simtrain.scenario.mamba import ATTENTION, EXPERTS, MAMBA, MLP

_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
_MAPPED_BY_ALL = {
    "vocab_size": Word("model.vocab_size"),
    "tie_word_embeddings": Word("model.tied_embeddings"),
    "torch_dtype": Word("precision.compute", values=_DTYPES),
    "dtype": Word("precision.compute", values=_DTYPES),
}
_MAPPED_BY_MOST = _MAPPED_BY_ALL | {
    "num_hidden_layers": Word("model.num_layers"),
    "hidden_size": Word("model.hidden_size"),
    "num_attention_heads": Word("model.num_attention_heads"),
    "max_position_embeddings": Word("model.seq_length"),
    "attention_dropout": Word("model.attention_dropout"),
    "hidden_dropout": Word("model.hidden_dropout"),
}
_MAPPED = _MAPPED_BY_MOST | {
    "num_key_value_heads": Word("model.num_query_groups"),
    "sliding_window": Word("model.attention_window"),
    "layer_types": Word("model.full_attention_every"),
    "sliding_window_pattern": Word("model.full_attention_every"),
    "_sliding_window_pattern": Word("model.full_attention_every"),
    "head_dim": Word("model.kv_channels"),
    "intermediate_size": Word("model.ffn_hidden_size"),
    "hidden_act": Word("model.activation"),
    "hidden_activation": Word("model.activation"),
    "attention_bias": Word("model.qkv_biases"),
    "mlp_bias": Word("model.biases"),
    "use_qk_norm": Word("model.qk_norm"),
}
_MAPPED_LATENT = _MAPPED | {
    "q_lora_rank": Word("model.latent_attention.q_lora_rank"),
    "kv_lora_rank": Word("model.latent_attention.kv_lora_rank"),
    "qk_nope_head_dim": Word("model.latent_attention.qk_head_dim"),
    "qk_rope_head_dim": Word("model.latent_attention.qk_pos_emb_head_dim"),
    "v_head_dim": Word("model.latent_attention.v_head_dim"),
    "num_nextn_predict_layers": Word("model.mtp_num_layers"),
}
_EXPERTS_OF_QWEN = {
    "num_experts": Word("model.experts.num"),
    "num_experts_per_tok": Word("model.experts.top_k"),
    "moe_intermediate_size": Word("model.experts.ffn_hidden_size"),
    "shared_expert_intermediate_size": Word("model.experts.shared_ffn_hidden_size"),
    "decoder_sparse_step": Word("model.experts.layer_frequency"),
    "mlp_only_layers": Word("model.experts.first_dense_layers"),
}
_EXPERTS_OF_DEEPSEEK = {
    "n_routed_experts": Word("model.experts.num"),
    "num_experts_per_tok": Word("model.experts.top_k"),
    "moe_intermediate_size": Word("model.experts.ffn_hidden_size"),
    "n_shared_experts": Word("model.experts.shared_ffn_hidden_size"),
    "first_k_dense_replace": Word("model.experts.first_dense_layers"),
    "moe_layer_freq": Word("model.experts.layer_frequency"),
    "scoring_func": Word("model.experts.router_score"),
    "topk_method": Word("model.experts.router_bias"),
    "n_group": Word("model.experts.router_groups"),
    "topk_group": Word("model.experts.router_group_top_k"),
}
_EXPERTS_OF_LLAMA4 = {
    "num_local_experts": Word("model.experts.num"),
    "num_experts_per_tok": Word("model.experts.top_k"),
    "intermediate_size": Word("model.experts.ffn_hidden_size"),
    "intermediate_size_mlp": Word("model.ffn_hidden_size"),
    "interleave_moe_layer_step": Word("model.experts.layer_frequency"),
}
_EXPERTS_OF_MIXTRAL = {
    "num_local_experts": Word("model.experts.num"),
    "num_experts_per_tok": Word("model.experts.top_k"),
    "intermediate_size": Word("model.experts.ffn_hidden_size"),
}
LATENT_FIELDS = tuple(
    word.field.removeprefix("model.")
    for word in _MAPPED_LATENT.values()
    if word.field.startswith("model.latent_attention.")
)
_MAPPED_HYBRID = {key: word for key, word in _MAPPED.items() if key != "hidden_act"} | {
    "mlp_hidden_act": Word("model.activation"),
    "attention_head_dim": Word("model.kv_channels"),
    "hybrid_override_pattern": Word("model.layer_pattern"),
    "layers_block_type": Word("model.layer_pattern"),
    "mamba_num_heads": Word("model.mamba.num_heads"),
    "mamba_head_dim": Word("model.mamba.head_dim"),
    "ssm_state_size": Word("model.mamba.state_dim"),
    "n_groups": Word("model.mamba.num_groups"),
    "chunk_size": Word("model.mamba.chunk_size"),
    "n_routed_experts": Word("model.experts.num"),
    "num_experts_per_tok": Word("model.experts.top_k"),
    "moe_intermediate_size": Word("model.experts.ffn_hidden_size"),
    "moe_shared_expert_intermediate_size": Word("model.experts.shared_ffn_hidden_size"),
    "n_group": Word("model.experts.router_groups"),
    "topk_group": Word("model.experts.router_group_top_k"),
}
_MAPPED_MAMBA2 = _MAPPED_BY_ALL | {
    "num_hidden_layers": Word("model.num_layers"),
    "hidden_size": Word("model.hidden_size"),
    "num_heads": Word("model.mamba.num_heads"),
    "head_dim": Word("model.mamba.head_dim"),
    "state_size": Word("model.mamba.state_dim"),
    "n_groups": Word("model.mamba.num_groups"),
    "chunk_size": Word("model.mamba.chunk_size"),
}
_MAPPED_BAMBA = _MAPPED | {
    "attn_layer_indices": Word("model.layer_pattern"),
    "mamba_n_heads": Word("model.mamba.num_heads"),
    "mamba_d_head": Word("model.mamba.head_dim"),
    "mamba_d_state": Word("model.mamba.state_dim"),
    "mamba_n_groups": Word("model.mamba.num_groups"),
    "mamba_chunk_size": Word("model.mamba.chunk_size"),
}
_MAPPED_GPT2 = _MAPPED_BY_ALL | {
    "n_layer": Word("model.num_layers"),
    "n_embd": Word("model.hidden_size"),
    "n_head": Word("model.num_attention_heads"),
    "n_inner": Word("model.ffn_hidden_size"),
    "n_positions": Word("model.seq_length"),
    "activation_function": Word("model.activation"),
    "attn_pdrop": Word("model.attention_dropout"),
    "resid_pdrop": Word("model.hidden_dropout"),
}
_MAPPED_FALCON = _MAPPED_BY_MOST | {
    "num_kv_heads": Word("model.num_query_groups"),
    "ffn_hidden_size": Word("model.ffn_hidden_size"),
    "activation": Word("model.activation"),
    "parallel_attn": Word("model.parallel_attention_mlp"),
}


@dataclass(frozen=True, slots=True)
class Family:
    """The models of one `model_type`.

    Args:
        defaults: default values of optional keys.
        fixed: fields of `model` that all models of the family share.
        mapped: the keys that set fields, without their defaults.
        differs: what the family's layers have beside these fields, and its effect.
        shared_expert: a shared expert is as wide as a routed one, without a key of its own.
        pattern: returns the pattern of a config's layers, for hybrid models.
        is_gated: an MLP has a gate.
        without_effect: keys that only this family ignores.
        not_modelled: keys of this family alone, with their effect.
    """

    defaults: dict[str, Any]
    fixed: dict[str, Any]
    mapped: Mapping[str, Word] = field(default_factory=lambda: _MAPPED)
    differs: Mapping[str, str] = field(default_factory=dict)
    shared_expert: bool = False
    pattern: Callable[[dict[str, Any]], str] | None = None
    is_gated: bool = True
    without_effect: frozenset[str] = frozenset()
    not_modelled: Mapping[str, Effect] = field(default_factory=dict)


_GATED = {
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "qk_norm": False,
    "biases": False,
    "qkv_biases": False,
}
_UNTIED = {"tie_word_embeddings": False, "hidden_act": "silu"}

_PLAIN = _GATED | {"normalization": "layer_norm"}
_BIASED = {"biases": True, "qkv_biases": True}
_LATENT_DEFAULTS = _UNTIED | {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

_GEMMA = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256}
_ELEMENTWISE = "slightly more elementwise work"
_MORE_NORMS = {"norms after attention and after the MLP too": _ELEMENTWISE}
_GLM = _UNTIED | {"head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5}
_DEEPSEEK_V3_DEFAULTS = (
    _LATENT_DEFAULTS
    | {"num_nextn_predict_layers": 0, "first_k_dense_replace": 3}
    | {"n_routed_experts": 256, "num_experts_per_tok": 8}
    | {"n_shared_experts": 1, "moe_intermediate_size": 2048}
    | {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4}
)
_DEEPSEEK_V3 = Family(
    _DEEPSEEK_V3_DEFAULTS, _GATED | {"qk_norm": True}, _MAPPED_LATENT | _EXPERTS_OF_DEEPSEEK
)

_BLOCK_TYPES = {"mamba": MAMBA, "attention": ATTENTION, "mlp": MLP, "moe": EXPERTS}
_BIASES_OF_MAMBA = {
    "use_bias": Effect("biases of Mamba-2's projections: slightly more elementwise work")
}
_HYBRID = _GATED | {"position_embedding": "none"}


def _pattern_of_nemotron(config: dict[str, Any]) -> str:
    if isinstance(kinds := config.get("layers_block_type"), list):
        return "".join(_BLOCK_TYPES.get(str(kind), str(kind)[:1]) for kind in kinds)
    return str(config.get("hybrid_override_pattern") or "")


def _pattern_of_mamba2(config: dict[str, Any]) -> str:
    return MAMBA * int(config.get("num_hidden_layers") or 0)


def _pattern_of_bamba(config: dict[str, Any]) -> str:
    """Return two letters for each of its layers: a mixer and an MLP."""
    attention = config.get("attn_layer_indices") or ()
    layers = range(int(config.get("num_hidden_layers") or 0))
    return "".join((ATTENTION if layer in attention else MAMBA) + MLP for layer in layers)


FAMILIES: dict[str, Family] = {
    "llama": Family(_UNTIED, _GATED),
    "mistral": Family(_UNTIED | {"num_key_value_heads": 8}, _GATED),
    "qwen2": Family(_UNTIED, _GATED | {"qkv_biases": True}),
    "qwen3": Family(_UNTIED | {"head_dim": 128}, _GATED | {"qk_norm": True}),
    "gemma": Family({"tie_word_embeddings": True, "hidden_act": "gelu", "head_dim": 256}, _GATED),
    "gpt2": Family(
        {
            "tie_word_embeddings": True,
            "activation_function": "gelu_new",
            "attn_pdrop": 0.1,
            "resid_pdrop": 0.1,
        },
        _PLAIN | _BIASED | {"position_embedding": "learned"},
        _MAPPED_GPT2,
    ),
    "gpt_neox": Family(
        {"tie_word_embeddings": False, "hidden_act": "gelu", "use_parallel_residual": True},
        _PLAIN | _BIASED,
        _MAPPED | {"use_parallel_residual": Word("model.parallel_attention_mlp")},
    ),
    "falcon": Family(
        {
            "tie_word_embeddings": True,
            "activation": "gelu",
            "parallel_attn": True,
            "max_position_embeddings": 2048,
            "hidden_dropout": 0,
            "attention_dropout": 0,
        },
        _PLAIN,
        _MAPPED_FALCON,
    ),
    "cohere": Family(
        {"tie_word_embeddings": True, "hidden_act": "silu"},
        # Its layer norms have no bias, and thus the parameters and bytes of RMS norms.
        _GATED | {"parallel_attention_mlp": "one_norm"},
    ),
    "mixtral": Family(
        _UNTIED
        | {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
        | {"intermediate_size": 14336},
        _GATED,
        _MAPPED | _EXPERTS_OF_MIXTRAL,
    ),
    "qwen2_moe": Family(
        _UNTIED
        | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
        | {"shared_expert_intermediate_size": 5632},
        _GATED | {"qkv_biases": True},
        _MAPPED | _EXPERTS_OF_QWEN | {"qkv_bias": Word("model.qkv_biases")},
    ),
    "qwen3_moe": Family(
        _UNTIED
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        | {"head_dim": 128},
        _GATED | {"qk_norm": True},
        _MAPPED | _EXPERTS_OF_QWEN,
    ),
    "deepseek_v2": Family(
        _LATENT_DEFAULTS
        | {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407},
        _GATED | {"qk_norm": True},
        _MAPPED_LATENT | _EXPERTS_OF_DEEPSEEK,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gemma2": Family(
        _GEMMA | {"sliding_window": 4096, "sliding_window_pattern": 2},
        _GATED,
        differs=_MORE_NORMS | {"attention scores and logits are capped by tanh": _ELEMENTWISE},
    ),
    "gemma3_text": Family(
        # Published configs leave out what equals a default.
        _GEMMA
        | {"sliding_window": 4096, "sliding_window_pattern": 6, "vocab_size": 262208}
        | {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072},
        _GATED | {"qk_norm": True},
        differs=_MORE_NORMS,
    ),
    "gpt_oss": Family(
        _UNTIED
        | {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2}
        | {"num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": True},
        _GATED | {"qkv_biases": True},
        _MAPPED | _EXPERTS_OF_MIXTRAL,
        {"biases of experts, and sinks of attention": _ELEMENTWISE},
    ),
    # Its norms have no weights: the bytes of RMS norms.
    "olmo": Family(_UNTIED, _GATED),
    # Its norms follow attention and MLP, and are as many.
    "olmo2": Family(_UNTIED, _GATED | {"qk_norm": True}),
    "olmo3": Family(_UNTIED | {"sliding_window_pattern": 4}, _GATED | {"qk_norm": True}),
    "olmoe": Family(
        _UNTIED | {"num_experts": 64, "num_experts_per_tok": 8},
        _GATED | {"qk_norm": True},
        _MAPPED
        | {key: word for key, word in _EXPERTS_OF_MIXTRAL.items() if key != "num_local_experts"}
        | {"num_experts": Word("model.experts.num")},
    ),
    "phi3": Family(_UNTIED, _GATED, _MAPPED | {"resid_pdrop": Word("model.hidden_dropout")}),
    "granite": Family(_UNTIED, _GATED),
    "seed_oss": Family(_UNTIED | {"head_dim": 128}, _GATED | {"qkv_biases": True}),
    "smollm3": Family(_UNTIED | {"tie_word_embeddings": True}, _GATED),
    "starcoder2": Family(
        {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096},
        _PLAIN | _BIASED,
        _MAPPED
        | {"residual_dropout": Word("model.hidden_dropout"), "use_bias": Word("model.biases")},
    ),
    "glm": Family(_GLM, _GATED | {"qkv_biases": True}),
    "glm4": Family(_GLM, _GATED | {"qkv_biases": True}, differs=_MORE_NORMS),
    "glm4_moe": Family(
        _UNTIED
        | {"n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1}
        | {"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "head_dim": 128}
        | {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1},
        _GATED,
        _MAPPED | _EXPERTS_OF_DEEPSEEK | {"num_nextn_predict_layers": Word("model.mtp_num_layers")},
    ),
    "llama4_text": Family(
        _UNTIED
        | {"num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
        | {"head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384},
        _GATED | {"qk_norm": True},
        {key: word for key, word in _MAPPED.items() if key not in ("layer_types",)}
        | _EXPERTS_OF_LLAMA4,
        {"attention in chunks of 8,192 tokens in most layers": "less work on longer sequences"},
        shared_expert=True,
    ),
    "nemotron_h": Family(
        {"tie_word_embeddings": False, "mlp_hidden_act": "relu2", "num_key_value_heads": 8}
        | {"mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8},
        _HYBRID,
        _MAPPED_HYBRID,
        pattern=_pattern_of_nemotron,
        not_modelled=_BIASES_OF_MAMBA,
        is_gated=False,
        without_effect=frozenset({"hidden_act", "n_shared_experts"}),
    ),
    "mamba2": Family(
        {"tie_word_embeddings": False, "num_heads": 128, "head_dim": 64, "state_size": 128}
        | {"n_groups": 8, "chunk_size": 256},
        _HYBRID,
        _MAPPED_MAMBA2,
        pattern=_pattern_of_mamba2,
        not_modelled=_BIASES_OF_MAMBA,
        without_effect=frozenset({"hidden_act"}),
    ),
    "bamba": Family(
        _UNTIED
        | {"num_key_value_heads": 8, "mamba_n_heads": 128, "mamba_d_head": 64}
        | {"mamba_d_state": 256, "mamba_n_groups": 1, "mamba_chunk_size": 256},
        _GATED,
        _MAPPED_BAMBA,
        pattern=_pattern_of_bamba,
    ),
}

MISSING = {
    "qwen3_next": "linear attention (Gated DeltaNet) in most layers",
    "qwen3_5": "linear attention (Gated DeltaNet) in most layers",
    "deepseek_v32": "sparse attention, whose indexer chooses tokens",
    "zamba": "an attention block that several layers share",
    "zamba2": "an attention block that several layers share",
    "kimi_linear": "linear attention (Kimi delta attention) in most layers",
    "qwen3_5_moe": "linear attention (Gated DeltaNet) in most layers",
    "minimax": "linear attention (lightning attention)",
    "minimax_text_01": "linear attention (lightning attention)",
    "granitemoehybrid": "layers with experts and a shared MLP beside them after Mamba-2",
    "jamba": "state-space layers (Mamba)",
    "mamba": "state-space layers (Mamba)",
    "falcon_h1": "layers with attention and Mamba-2 side by side",
    "minimax_m1": "linear attention (lightning attention)",
    "rwkv": "recurrent layers (RWKV)",
    "bert": "an encoder",
    "t5": "an encoder and attention to it",
    "bloom": "a bias by relative position in attention (ALiBi)",
    "mpt": "a bias by relative position in attention (ALiBi)",
    "mllama": "attention to an encoder of images",
}
"""What simtrain has no blocks for, by model type."""
TEXT_MODELS = {"llama4": "llama4_text", "gemma3": "gemma3_text"}
"""Types of models that read images too, and the type of the text model in `text_config`."""

_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
GATED_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", **dict.fromkeys(_GELUS, "geglu")}
PLAIN_ACTIVATIONS = {**dict.fromkeys(_GELUS, "gelu"), "relu2": "squared_relu"}

NOT_MODELLED: dict[str, Effect] = {
    "router_jitter_noise": Effect(
        "one more kernel, which multiplies the router's input by noise", ("0.0", "0")
    ),
    "conv_kernel": Effect("a convolution over another number of tokens", ("4",)),
    "mamba_d_conv": Effect("a convolution over another number of tokens", ("4",)),
    "mamba_proj_bias": Effect("biases of Mamba-2's projections: slightly more elementwise work"),
    "residual_in_fp32": Effect("residuals in fp32: more bytes in norms and sums"),
    "attn_rotary_emb": Effect("the rotary embedding rotates fewer channels"),
    "alibi": Effect("a bias by relative position in attention"),
    "bias": Effect("biases in all linear layers: slightly more elementwise work"),
    "rotary_pct": Effect("the rotary embedding rotates fewer channels", ("1.0", "1")),
    "partial_rotary_factor": Effect("the rotary embedding rotates fewer channels", ("1.0", "1")),
    "add_cross_attention": Effect("attention to an encoder"),
    "quantization_config": Effect("quantized weights"),
    "use_mrope": Effect("rotary embeddings of three axes"),
    "clip_qkv": Effect("queries, keys and values are clipped: slightly more elementwise work"),
    "no_rope_layers": Effect("some layers have no rotary embedding: slightly less work"),
}

_WITHOUT_EFFECT = """
    model_type architectures _name_or_path name_or_path transformers_version auto_map _commit_hash
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id tokenizer_class
    initializer_range initializer_factor rms_norm_eps layer_norm_eps layer_norm_epsilon use_cache
    rope_theta rope_scaling rope_parameters rotary_emb_base pretraining_tp max_window_layers
    unsloth_version classifier_dropout embd_pdrop n_ctx n_special predict_special_tokens
    reorder_and_upcast_attn scale_attn_weights scale_attn_by_inverse_layer_idx summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params
    output_past is_decoder is_encoder_decoder output_attentions output_hidden_states return_dict
    id2label label2id problem_type finetuning_task chunk_size_feed_forward attn_implementation
    _attn_implementation gradient_checkpointing router_aux_loss_coef
    output_router_logits norm_topk_prob aux_loss_alpha
    routed_scaling_factor seq_aux ep_size use_sliding_window logit_scale
    multi_query new_decoder_architecture num_ln_in_parallel_attn
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar cache_implementation
    rope_local_base_freq use_bidirectional_attention swiglu_limit initial_context_length
    experts_per_token original_max_position_embeddings embedding_multiplier logits_scaling
    sliding_window_size residual_multiplier attention_multiplier no_rope_layer_interval norm_type
    norm_epsilon embedding_dropout scale_embedding attn_temperature_tuning attn_scale floor_scale
    for_llm_compressor attention_chunk_size moe_layers no_rope_scaling rope_interleave mlp_dropout
    weight_tying use_mup vision_config text_config image_token_index
    expand mamba_expand mamba_hidden_act time_step_min time_step_max time_step_floor
    time_step_limit time_step_rank use_conv_bias mamba_conv_bias rescale_prenorm_residual
    num_logits_to_keep use_mamba_kernels z_loss_coefficient rms_norm norm_before_gate
    mamba_ssm_cache_dtype is_mamba2 mamba_dt_min mamba_dt_max mamba_dt_limit chunk_size_mamba
    time_step_init_scheme time_step_scale
    boi_token_index eoi_token_index mm_tokens_per_image eom_token_index
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())


def table_of(family: Family) -> Table:
    """Return the table of the configs of a family."""
    return Table(
        kind="key",
        source="this model's config",
        mapped={
            key: replace(word, default=family.defaults.get(key))
            for key, word in family.mapped.items()
        },
        not_modelled=NOT_MODELLED | dict(family.not_modelled),
        without_effect=WITHOUT_EFFECT | family.without_effect,
    )
