"""simtrain's names for settings of Megatron-LM, torchtitan and Hugging Face.

Errors about an unknown field suggest to write these replacements, or to remove the field.
"""

from __future__ import annotations

from types import MappingProxyType

_GATED = "activation: swiglu, with ffn_hidden_size columns for the gate and as many for the values"
_UNTIED = "tied_embeddings, which means the opposite"
_LATENT = "latent_attention: {kv_lora_rank: ...}, with q_lora_rank and the head sizes"
_PARALLEL = "parallel_attention_mlp: one_norm or two_norms"
_PATTERN = (
    "first_dense_layers: 3 if the first 3 layers are dense, layer_frequency: 2 for experts in "
    "every second layer"
)
_NO_TIME = "remove it: it affects neither time nor memory"

EXPERT_NAMES = MappingProxyType(
    {
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), "num"),
        **dict.fromkeys(("moe_router_topk", "num_experts_per_tok", "topk"), "top_k"),
        **dict.fromkeys(("moe_ffn_hidden_size", "moe_intermediate_size"), "ffn_hidden_size"),
        "moe_shared_expert_intermediate_size": "shared_ffn_hidden_size",
        "shared_expert_intermediate_size": "shared_ffn_hidden_size",
        "n_shared_experts": "shared_ffn_hidden_size, the sum of the sizes of all shared experts",
        **dict.fromkeys(("first_k_dense_replace", "mlp_only_layers"), "first_dense_layers"),
        "moe_layer_freq": _PATTERN,
        "decoder_sparse_step": "layer_frequency",
        "moe_expert_capacity_factor": "capacity_factor",
        "moe_router_dtype": "router_dtype",
        **dict.fromkeys(("moe_router_score_function", "scoring_func"), "router_score"),
        "moe_router_enable_expert_bias": "router_bias",
        **dict.fromkeys(("moe_router_num_groups", "n_group"), "router_groups"),
        **dict.fromkeys(("moe_router_group_topk", "topk_group"), "router_group_top_k"),
        "moe_grouped_gemm": "remove it: the products of experts are always grouped",
    }
)
"""Other names of the fields of `model.experts`, each with its replacement."""

PARALLELISM_NAMES = MappingProxyType(
    {
        "tensor_model_parallel_size": "tensor",
        "pipeline_model_parallel_size": "pipeline",
        "pipeline_model_parallel_layout": "layout",
        "context_parallel_size": "context",
        "data_parallel_size": "data",
        "expert_model_parallel_size": "expert",
        "expert_parallel_degree": "expert",
        "expert_tensor_parallel_size": "expert_tensor",
        "expert_tensor_parallel_degree": "expert_tensor",
        "moe_token_dispatcher_type": "expert_dispatch: all_to_all or all_gather",
    }
)
"""Other names of the fields of `parallelism`, each with its replacement."""

_AXES = {
    "tensor": ("tp", "tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size"),
    "pipeline": ("pp", "pipeline_parallel", "pipeline_parallel_size"),
    "context": ("cp", "context_parallel", "context_parallel_size", "context_parallel_degree"),
    "data": ("dp", "data_parallel", "data_parallel_size", "data_parallel_replicate_degree"),
    "expert": ("ep", "expert_parallel", "expert_parallel_size", "expert_model_parallel_size"),
    "interleave": (
        *("vp", "vpp", "virtual_pipeline", "num_virtual_stages"),
        *("virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage"),
    ),
}
_ZERO = "memory.zero_stage: 1 (2 and 3 shard gradients and parameters too)"
_NUM_GPUS = "parallelism.data: the number of GPUs is tensor x context x pipeline x data"
_NODES = "hardware.cluster.num_nodes, the nodes of the cluster"

SCENARIO_NAMES = MappingProxyType(
    {
        **{name: f"parallelism.{axis}" for axis, names in _AXES.items() for name in names},
        **dict.fromkeys(("micro_batch_size", "mbs", "local_batch_size"), "batch.micro"),
        **dict.fromkeys(("global_batch_size", "gbs", "train_batch_size"), "batch.global"),
        **dict.fromkeys(
            ("gradient_accumulation", "gradient_accumulation_steps", "num_microbatches"),
            "batch.global, which is micro x data x the number of microbatches",
        ),
        **dict.fromkeys(("sequence_length", "seq_len", "max_seq_len"), "model.seq_length"),
        **dict.fromkeys(
            ("recompute_granularity", "granularity", "activation_checkpointing"),
            "recompute.strategy",
        ),
        **dict.fromkeys(
            ("use_distributed_optimizer", "distributed_optimizer", "zero", "zero_optimization"),
            _ZERO,
        ),
        **dict.fromkeys(("fsdp", "fully_shard"), "memory.zero_stage: 3"),
        **dict.fromkeys(("dtype", "params_dtype", "fp8_format"), "precision.compute"),
        **dict.fromkeys(("bf16", "fp16", "fp8"), "precision.compute: bf16, fp16 or fp8"),
        "accumulate_allreduce_grads_in_fp32": "precision.gradients: fp32",
        "grad_reduce_in_bf16": "precision.gradients: bf16",
        "optimizer": "remove it: the optimizer is Adam",
        **dict.fromkeys(("tp_comm_overlap", "tp_comm"), "overlap.userbuffers"),
        **dict.fromkeys(("overlap_grad_reduce", "grad_reduce"), "overlap.data_parallel"),
        **dict.fromkeys(("overlap_param_gather", "param_gather"), "overlap.parameter_gather"),
        **dict.fromkeys(("num_gpus", "gpus", "world_size"), _NUM_GPUS),
        **dict.fromkeys(("nodes", "nnodes", "num_nodes"), _NODES),
        **dict.fromkeys(("gpu", "profile", "machine"), "cluster: the name of a hardware profile"),
        **dict.fromkeys(("use_flash_attn", "flash_attention"), "attention_backend: fused"),
    }
)
"""Other names of fields, written in any section, each with its replacement."""


def _in_section(instead: str) -> str:
    field = instead.partition(":")[0].partition(",")[0]
    return instead if field.startswith("remove") else f"experts: {{{field}: ...}}"


OTHER_NAMES = MappingProxyType(
    {
        **{name: _in_section(instead) for name, instead in EXPERT_NAMES.items()},
        # Megatron-LM
        "group_query_attention": "num_query_groups",
        "swiglu": _GATED,
        "gated_linear_unit": _GATED,
        "activation_func": "activation",
        "squared_relu": "activation: squared_relu",
        "untie_embeddings_and_output_weights": _UNTIED,
        "disable_bias_linear": "biases, which means the opposite",
        "add_bias_linear": "biases",
        "add_qkv_bias": "qkv_biases",
        "qk_layernorm": "qk_norm",
        "position_embedding_type": "position_embedding",
        "use_rotary_position_embeddings": "position_embedding: rope",
        "rotary_base": _NO_TIME,
        "parallel_attention": _PARALLEL,
        "multi_latent_attention": _LATENT,
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim", "v_head_dim"), _LATENT),
        "qk_pos_emb_head_dim": _LATENT,
        "window_attn_skip_freq": "full_attention_every",
        "window_size": "attention_window: the number of tokens before a query, plus 1",
        "padded_vocab_size": "vocab_size",
        "layernorm_epsilon": _NO_TIME,
        "norm_epsilon": _NO_TIME,
        "encoder_num_layers": "num_layers",
        # Hugging Face
        "num_hidden_layers": "num_layers",
        "n_layer": "num_layers",
        "n_head": "num_attention_heads",
        "n_embd": "hidden_size",
        "num_key_value_heads": "num_query_groups",
        "head_dim": "kv_channels",
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation (silu with a gate is swiglu, relu2 is squared_relu)",
        "activation_function": "activation",
        "rms_norm_eps": "normalization: rms_norm; its epsilon affects neither time nor memory",
        "layer_norm_eps": _NO_TIME,
        "tie_word_embeddings": "tied_embeddings",
        "max_position_embeddings": "seq_length, the length of the training sequences",
        "max_sequence_length": "seq_length",
        "rope_theta": _NO_TIME,
        "qk_nope_head_dim": "latent_attention: {qk_head_dim: ...}",
        "qk_rope_head_dim": "latent_attention: {qk_pos_emb_head_dim: ...}",
        "num_nextn_predict_layers": "mtp_num_layers",
        "sliding_window": "attention_window",
        **dict.fromkeys(("layer_types", "sliding_window_pattern"), "full_attention_every"),
        "parallel_attn": _PARALLEL,
        "num_ln_in_parallel_attn": _PARALLEL,
        "use_parallel_residual": _PARALLEL,
        "attention_bias": "qkv_biases for queries, keys and values, biases for all linear layers",
        "mlp_bias": "biases",
        "hidden_dropout_prob": "hidden_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }
)
"""Other names of the fields of `model`, each with its replacement."""
