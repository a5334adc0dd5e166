"""Words of Megatron-Bridge and NeMo, and the arguments of Megatron-LM that they set.

Both build Megatron-Core's configs, whose fields have the names of arguments unless a table here
says another. Source: megatron/bridge/training/config.py and models/gpt_provider.py of
NVIDIA-NeMo/Megatron-Bridge (0.6, 2026); nemo/lightning and nemo/collections/llm of NVIDIA/NeMo
(2.4, 2025); examples/nlp/language_modeling/conf/megatron_gpt_config.yaml of NeMo 1 (2024).
"""

from __future__ import annotations

import dataclasses

from simtrain.importing.megatron.arguments import TABLE
from simtrain.importing.settings import Effect
from simtrain.importing.table import Table, Word

RENAMED = {
    "num_moe_experts": "num_experts",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "bucket_size": "ddp_bucket_size",
}
"""Arguments of Megatron-Core's fields with another name."""

INVERTED = {
    "share_embeddings_and_output_weights": "untie_embeddings_and_output_weights",
    "use_mamba_mem_eff_path": "disable_mamba_mem_eff_path",
}
"""Arguments with the opposite meaning."""

_WITHOUT_EFFECT = """
    use_gloo_process_groups lion_beta1 lion_beta2 muon_coefficient_type muon_scalar_optimizer
    check_optimizer_step_success exit_signal transformer_layer_spec
    moe_router_topk_limited_devices
    grad_reduce_in_fp32 moe_flex_dispatcher_num_sms
    activation_func activation_func_fp8_input_store adam_beta1 adam_beta2 adam_eps
    autocast_dtype autocast_enabled average_in_collective barrier_with_L1_time batch_p2p_comm
    batch_p2p_sync beta_fast beta_slow bias_activation_fusion check_for_large_grads
    check_for_nan_in_grad check_weight_hash_across_dp_replicas_interval config_logger_dir
    cpu_offloading_activations cpu_offloading_double_buffering
    cpu_offloading_retain_pinned_cpu_buffers cpu_offloading_weights
    cuda_graph_retain_backward_graph cuda_graph_use_single_mempool cuda_graph_warmup_steps
    decoupled_weight_decay decrease_batch_size_if_needed disable_jit_fuser
    disable_parameter_transpose_cache disable_symmetric_registration embedding_init_method
    enable_autocast enable_megatron_core_experimental exit_signal
    exit_signal_handler_for_dataloader external_gpu_device_mapping finalize_model_grads_func
    flight_recorder_dump_on_timeout flight_recorder_extra_dump_on_exec
    flight_recorder_include_only_active flight_recorder_trace_buffer_size fp32
    fp8_dot_product_attention fp8_multi_head_attention fp8_output_proj fp8_params
    fp8_quantizer_factory fsdp_all_gather_in_start_param_sync gated_linear_unit
    generation_config grad_scale_func grad_sync_func hetereogenous_dist_checkpoint
    heterogeneous_block_specs hf_model_id hf_model_revision hidden_size_per_head
    hybrid_context_parallel inference_grouped_gemm_backend inference_sampling_seed init_method
    init_model_with_meta_device kitchen_attention_backend layernorm_zero_centered_gamma
    linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads
    linear_value_head_dim load_weights log_num_zeros_in_grad
    manual_gc_eval max_seqlen_per_dp_cp_rank memory_efficient_layer_norm
    min_offloaded_tensor_size moe_deepep_num_sms moe_enable_routing_replay moe_hybridep_num_sms
    moe_token_dropping mup_attn_scale_power mup_embedding_mult mup_output_mult mup_width_mult
    no_sync_func num_moe_layers optimizer_cuda_graph original_max_position_embeddings
    output_layer_init_method pad_buckets_for_high_nccl_busbw parallel_output
    param_name_patterns_for_fp32_local_accumulation param_sync_func params_dtype
    persist_layer_norm pin_cpu_grads pin_cpu_params pipeline_dtype precision
    preserve_fp32_weights quant_recipe restore_modelopt_state rope_scaling rotary_base_per_layer
    scatter_embedding_sequence_parallel seq_len_interpolation_factor sgd_momentum
    should_pad_vocab softmax_scale store_param_remainders timers tp_comm_atomic_ag
    tp_comm_atomic_rs tp_only_amax_red train_sync_interval transformer_layer_spec
    use_decentralized_pg use_kitchen use_te_rng_tracker
    use_torch_optimizer_for_cpu_offload use_transformer_engine_full_layer_spec
    variable_seq_lengths vocab_size wgrad_deferral_limit window_attn_skip_freq_type
    yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int yarn_mscale
    yarn_mscale_all_dim yarn_original_max_position_embeddings yarn_rotary_scaling_factor
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())
"""Words without an argument, and those that functions read."""

_SECTIONS_WITHOUT_EFFECT = (
    "checkpoint logger rng rerun_state_machine scheduler profiling validation straggler "
    "nvrx_straggler ft env_vars tensor_inspect inprocess_restart tokenizer dataset "
    "optimizer_config_override_provider log resume exp_manager run data hydra defaults name "
    "restore_from_path callbacks"
)
"""Sections of a config whose fields set no argument, except those that functions read."""

NOT_MODELLED = {
    "deallocate_pipeline_outputs": Effect(
        "outputs of stages stay allocated: more memory", active=("False",)
    ),
    "apply_flex_dispatcher_backend": Effect(
        "DeepEP's or HybridEP's all-to-alls on GPUs that support them: faster"
    ),
    "apply_determinism_overrides": Effect("deterministic kernels: slower"),
    "fused_single_qkv_rope": Effect("one kernel less for each rotation: faster"),
    "fused_residual_rmsnorm": Effect("one kernel less for each norm: faster"),
    "mla_down_proj_fusion": Effect("one product for both latents: faster"),
    "mtp_use_repeated_layer": Effect("token prediction uses the same weights: less memory"),
    "high_priority_a2a_comm_stream": Effect("all-to-alls on a stream of higher priority"),
    "dense_grouped_gemm": Effect("other kernels for products"),
    "peft": Effect("only adapters are trained: less memory; the scenario trains all weights"),
    "megatron_amp_O2": Effect("gradients in fp32 of 16-bit copies: memory", active=("False",)),
    "enc_dec": Effect("an encoder"),
}
"""Effects of words that Megatron-LM has no argument for."""


_ADAPTERS = {
    "peft_dim": Word("model.lora.rank"),
    "peft_target_modules": Word("model.lora.modules"),
    "peft_dropout": Word("model.lora.dropout"),
}
"""Settings of an adapter, which Megatron-LM has no arguments for."""


def table_of(tool: str) -> Table:
    """Return the table of a tool: Megatron-LM's arguments, and the tool's own words."""
    return dataclasses.replace(
        TABLE,
        kind="field",
        source=tool,
        mapped=dict(TABLE.mapped) | _ADAPTERS,
        not_modelled=dict(TABLE.not_modelled) | NOT_MODELLED,
        without_effect=TABLE.without_effect | WITHOUT_EFFECT,
    )


SECTIONS_WITHOUT_EFFECT = frozenset(_SECTIONS_WITHOUT_EFFECT.split())

MIXED_PRECISION = {
    "bf16_mixed": "bf16",
    "fp16_mixed": "fp16",
    "bf16_with_fp8_delayed_scaling_mixed": "bf16 hybrid delayed gather",
    "fp16_with_fp8_delayed_scaling_mixed": "fp16 hybrid delayed gather",
    "bf16_with_mxfp8_mixed": "bf16 e4m3 mxfp8 gather",
    "fp16_with_mxfp8_mixed": "fp16 e4m3 mxfp8 gather",
    "bf16_with_fp8_current_scaling_mixed": "bf16 hybrid tensorwise gather ends=1,1",
    "fp16_with_fp8_current_scaling_mixed": "fp16 hybrid tensorwise gather ends=1,1",
    "nanov2_bf16_with_fp8_current_scaling_mixed": "bf16 hybrid blockwise gather ends=2,2",
    "bf16_with_fp8_subchannel_scaling_mixed": "bf16 hybrid blockwise",
    "fp16_with_fp8_subchannel_scaling_mixed": "fp16 hybrid blockwise",
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": "bf16 hybrid tensorwise gather ends=2,2",
    "bf16_with_nvfp4_mixed": "bf16 nvfp4",
    "nemotron_3_super_bf16_with_nvfp4_mixed": "bf16 nvfp4 ends=1,14",
}
"""What each named precision sets (mixed_precision.py): a type, an fp8 format and recipe, whether
parameters are gathered in fp8, and how many of the first and last layers stay in 16 bits."""

CONSTANTS = {"DEFAULT_NULL_TOKENIZER_VOCAB_SIZE": 32000}
"""Constants of Megatron-Bridge that its recipes use (recipes/utils/tokenizer_utils.py)."""
