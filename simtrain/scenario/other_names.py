"""simtrain's names for settings of Megatron-LM, torchtitan and Hugging Face.

Errors about an unknown field suggest to write these replacements, or to remove the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_NO_TIME = "remove it: it affects neither time nor memory"


def _by_other_name(names: Mapping[str, str]) -> dict[str, str]:
    return {name: ours for ours, others in names.items() for name in others.split()}


EXPERT_NAMES = _by_other_name(
    {
        "num": "num_experts num_local_experts n_routed_experts",
        "top_k": "moe_router_topk num_experts_per_tok topk",
        "ffn_hidden_size": "moe_ffn_hidden_size moe_intermediate_size",
        "shared_ffn_hidden_size": (
            "moe_shared_expert_intermediate_size shared_expert_intermediate_size"
        ),
        "shared_ffn_hidden_size, the sum of the sizes of all shared experts": "n_shared_experts",
        "first_dense_layers": "first_k_dense_replace mlp_only_layers",
        "first_dense_layers: 3 if the first 3 layers are dense, layer_frequency: 2 for experts in "
        "every second layer": "moe_layer_freq",
        "layer_frequency": "decoder_sparse_step",
        "capacity_factor": "moe_expert_capacity_factor",
        "router_dtype": "moe_router_dtype",
        "router_score": "moe_router_score_function scoring_func",
        "router_bias": "moe_router_enable_expert_bias",
        "router_groups": "moe_router_num_groups n_group",
        "router_group_top_k": "moe_router_group_topk topk_group",
        "remove it: the products of experts are always grouped": "moe_grouped_gemm",
    }
)
"""Other names of the fields of `model.experts`, each with its replacement."""

LORA_NAMES = _by_other_name(
    {
        "rank": "dim r lora_rank",
        "modules": "target_modules",
        "dropout": "lora_dropout",
        _NO_TIME: "alpha lora_alpha",
    }
)
"""Other names of the fields of `model.lora`, each with its replacement."""

MAMBA_NAMES = _by_other_name(
    {
        "num_heads": "mamba_num_heads n_mamba_heads mamba_n_heads",
        "head_dim": "mamba_head_dim mamba_d_head d_head",
        "state_dim": "mamba_state_dim ssm_state_size state_size mamba_d_state",
        "num_groups": "mamba_num_groups n_groups mamba_n_groups",
        "chunk_size": "mamba_chunk_size",
    }
)
"""Other names of the fields of `model.mamba`, each with its replacement."""

SCENARIO_NAMES = _by_other_name(
    {
        "parallelism.tensor": (
            "tp tensor_parallel tensor_parallel_size tensor_model_parallel_size"
        ),
        "parallelism.pipeline": (
            "pp pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size"
        ),
        "parallelism.context": (
            "cp context_parallel context_parallel_size context_parallel_degree"
        ),
        "parallelism.data": ("dp data_parallel data_parallel_size data_parallel_replicate_degree"),
        "parallelism.data: the number of GPUs is tensor x context x pipeline x data": (
            "num_gpus gpus world_size"
        ),
        "parallelism.expert": (
            "ep expert_parallel expert_parallel_size expert_model_parallel_size "
            "expert_parallel_degree"
        ),
        "parallelism.expert_tensor": "expert_tensor_parallel_size expert_tensor_parallel_degree",
        "parallelism.expert_dispatch: all_to_all or all_gather": "moe_token_dispatcher_type",
        "parallelism.interleave": (
            "vp vpp virtual_pipeline num_virtual_stages virtual_pipeline_model_parallel_size "
            "num_layers_per_virtual_pipeline_stage"
        ),
        "parallelism.layout": "pipeline_model_parallel_layout",
        "batch.micro": "micro_batch_size mbs local_batch_size",
        "batch.global": "global_batch_size gbs train_batch_size",
        "batch.global, of all replicas; batch.micro is that of a microbatch": (
            "batch_size batchsize bs"
        ),
        "batch.global, which is micro x data x the number of microbatches": (
            "gradient_accumulation gradient_accumulation_steps num_microbatches"
        ),
        "model.seq_length": "sequence_length seq_len max_seq_len",
        "recompute.strategy": "recompute_granularity granularity activation_checkpointing",
        "memory.zero_stage: 1 (2 and 3 shard gradients and parameters too)": (
            "use_distributed_optimizer distributed_optimizer zero zero_optimization"
        ),
        "memory.zero_stage: 3": "fsdp fully_shard",
        "precision.compute": "dtype params_dtype fp8_format fp4_format",
        "precision.first_layers_bf16": "num_layers_at_start_in_bf16 first_last_layers_bf16",
        "precision.last_layers_bf16": "num_layers_at_end_in_bf16",
        "precision.compute: bf16, fp16 or fp8": "bf16 fp16 fp8",
        "precision.gradients: fp32": "accumulate_allreduce_grads_in_fp32",
        "precision.gradients: bf16": "grad_reduce_in_bf16",
        "remove it: the optimizer is Adam": "optimizer",
        "overlap.userbuffers": "tp_comm_overlap tp_comm enable_async_tensor_parallel",
        "overlap.data_parallel": "overlap_grad_reduce grad_reduce",
        "overlap.parameter_gather": "overlap_param_gather param_gather",
        "hardware.cluster.num_nodes, the nodes of the cluster": "nodes nnodes num_nodes",
        "cluster: the name of a hardware profile": "gpu profile machine",
        "attention_backend: fused": "use_flash_attn flash_attention",
    }
)
"""Other names of fields, written in any section, each with its replacement."""


def names_within(section: str) -> Mapping[str, str]:
    """Return the names of `SCENARIO_NAMES` for fields of a section, relative to it."""
    return {
        name: ours.removeprefix(f"{section}.")
        for name, ours in SCENARIO_NAMES.items()
        if ours.startswith(f"{section}.")
    }


def _in_model(ours: str) -> str:
    field = ours.partition(":")[0].partition(",")[0]
    return ours if field.startswith("remove") else f"experts: {{{field}: ...}}"


MODEL_NAMES = {name: _in_model(ours) for name, ours in EXPERT_NAMES.items()} | _by_other_name(
    {
        "layer_pattern": "hybrid_override_pattern hybrid_layer_pattern",
        "mamba: {num_heads: ...}": "mamba_num_heads",
        "mamba: {head_dim: ...}": "mamba_head_dim",
        "mamba: {state_dim: ...}": "mamba_state_dim ssm_state_size",
        "mamba: {num_groups: ...}": "mamba_num_groups n_groups",
        "num_layers": "encoder_num_layers num_hidden_layers n_layer",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_query_groups": "group_query_attention num_key_value_heads",
        "kv_channels": "head_dim",
        "ffn_hidden_size": "intermediate_size",
        "vocab_size": "padded_vocab_size",
        "seq_length": "max_sequence_length",
        "seq_length, the length of the training sequences": "max_position_embeddings",
        "activation": "activation_func activation_function",
        "activation (silu with a gate is swiglu, relu2 is squared_relu)": "hidden_act",
        "activation: squared_relu": "squared_relu",
        "activation: swiglu, with ffn_hidden_size columns for the gate and as many for the "
        "values": "swiglu gated_linear_unit",
        "tied_embeddings": "tie_word_embeddings",
        "tied_embeddings, which means the opposite": "untie_embeddings_and_output_weights",
        "biases": "add_bias_linear mlp_bias",
        "biases, which means the opposite": "disable_bias_linear",
        "qkv_biases": "add_qkv_bias",
        "qkv_biases for queries, keys and values, biases for all linear layers": "attention_bias",
        "qk_norm": "qk_layernorm",
        "position_embedding": "position_embedding_type",
        "position_embedding: rope": "use_rotary_position_embeddings",
        "normalization: rms_norm; its epsilon affects neither time nor memory": "rms_norm_eps",
        "parallel_attention_mlp: one_norm or two_norms": (
            "parallel_attention parallel_attn num_ln_in_parallel_attn use_parallel_residual"
        ),
        "latent_attention: {kv_lora_rank: ...}, with q_lora_rank and the head sizes": (
            "multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim v_head_dim "
            "qk_pos_emb_head_dim"
        ),
        "latent_attention: {qk_head_dim: ...}": "qk_nope_head_dim",
        "latent_attention: {qk_pos_emb_head_dim: ...}": "qk_rope_head_dim",
        "mtp_num_layers": "num_nextn_predict_layers",
        "attention_window": "sliding_window",
        "attention_window: the number of tokens before a query, plus 1": "window_size",
        "full_attention_every": "window_attn_skip_freq layer_types sliding_window_pattern",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        _NO_TIME: "rotary_base rope_theta layernorm_epsilon layer_norm_eps norm_epsilon",
    }
)
"""Other names of the fields of `model`, each with its replacement."""


_OWN_SCHEDULE = (
    "this schedule is not built in; write the path of a CSV file with its order "
    "(simtrain show extend)"
)
_UNIFORM = "write recompute: {strategy: full, method: uniform, num_layers: 1}"
_BLOCK = "write recompute: {strategy: full, method: block, num_layers: 1}"

OTHER_VALUES = MappingProxyType(
    {
        "schedule": {
            **dict.fromkeys(("zerobubble", "zero_bubble", "zero-bubble", "zb"), "write zb_h1"),
            **dict.fromkeys(("zb-h1", "zbh1", "zb-1p"), "write zb_h1"),
            **dict.fromkeys(("zb-h2", "zbh2", "zb-2p"), "write zb_h2"),
            **dict.fromkeys(("zb-v", "zb-vpp", "zbvzerobubble"), "write zbv"),
            **dict.fromkeys(("interleavedzerobubble",), "write zb1p"),
            **dict.fromkeys(("loopedbfs",), "write looped_bfs"),
            **dict.fromkeys(("pipedream-flush", "pipedream_flush", "dapple"), "write 1f1b"),
            **dict.fromkeys(("pipedream-2bw", "pipedream2bw"), "write pipedream_2bw"),
            **dict.fromkeys(("pipedream", "gems", "bitpipe"), _OWN_SCHEDULE),
            **dict.fromkeys(("1f1b-interleaved", "interleaved1f1b", "vpp"), "write interleaved"),
        },
        "attention_backend": dict.fromkeys(
            ("flash", "flash_attention", "flash_attn", "flash_attention_2", "sdpa", "te"),
            "write fused",
        )
        | dict.fromkeys(("local", "eager", "math"), "write unfused"),
        "precision.compute": {
            "float16": "write fp16",
            "bfloat16": "write bf16",
            "float32": "write fp32",
            "tf32": "write compute: fp32 and tf32: true",
            "mxfp8": "write compute: fp8 and fp8_recipe: mxfp8",
            "nvfp4": "write fp4",
            **dict.fromkeys(("mxfp4", "int8"), "it is not modelled"),
        },
        "recompute.strategy": {
            "false": "write none",
            "true": "write selective or full",
            "uniform": _UNIFORM,
            "block": _BLOCK,
            "activations": "write selective",
            "core_attn": "write selective",
        },
        "model.activation": {
            "silu": "write swiglu for silu with a gate; without one it is not modelled"
        },
        "model.position_embedding": {
            "alibi": "it is not modelled",
            "relative": "it is not modelled",
            "rotary": "write rope",
        },
        "parallelism.context_communication": {
            "ring": "write p2p",
            "ulysses": "write a2a",
            "allgather": "write all_gather",
        },
    }
)
"""Values of other programs by field of a scenario, in lower case, each with a remedy."""
