"""Arguments of Megatron-LM: mapped to a field, without effect, or not modelled.

Names are those that Megatron-LM prints: `--disable-bias-linear` sets `add_bias_linear` to False.
Source: megatron/training/arguments.py of Megatron-LM (2025, core 0.15), and arguments of older
versions.
"""

from __future__ import annotations

from simtrain.importing.megatron.without_effect import WITHOUT_EFFECT
from simtrain.importing.settings import Effect
from simtrain.importing.table import Table, Word, as_they_are
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.dispatchers.all_to_all import AllToAll

_CONTEXT_COMMUNICATION = {
    "p2p": "p2p",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "a2a": "a2a",
    "a2a+p2p": "a2a+p2p",
}
"""The values of --cp-comm-type; Transformer Engine writes all_gather, and --help allgather."""

_DISPATCH = {"alltoall_seq": AllToAll.name} | {
    dispatcher.megatron[0]: name for name, dispatcher in reversed([*DISPATCHERS.items()])
}
"""Types of dispatchers; the first of several of a type is its default backend."""
_FLEX_BACKENDS = {
    backend: name for name, dispatcher in DISPATCHERS.items() if (backend := dispatcher.megatron[1])
}
_ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""The sharding strategies of Megatron-FSDP, with the ZeRO stages that shard the same states."""

_BACKENDS = {
    "auto": "fused",
    "flash": "fused",
    "fused": "fused",
    "unfused": "unfused",
    "local": "unfused",
}

MAPPED: dict[str, Word] = {
    "num_layers": Word("model.num_layers"),
    "encoder_num_layers": Word("model.num_layers"),
    "hidden_size": Word("model.hidden_size"),
    "ffn_hidden_size": Word("model.ffn_hidden_size"),
    "num_attention_heads": Word("model.num_attention_heads"),
    "group_query_attention": Word("model.num_query_groups", default=False),
    "num_query_groups": Word("model.num_query_groups"),
    "num_key_value_heads": Word("model.num_query_groups"),
    "kv_channels": Word("model.kv_channels", default=0),
    "multi_latent_attention": Word("model.latent_attention.kv_lora_rank", default=False),
    "q_lora_rank": Word("model.latent_attention.q_lora_rank"),
    "kv_lora_rank": Word("model.latent_attention.kv_lora_rank"),
    "qk_head_dim": Word("model.latent_attention.qk_head_dim"),
    "qk_pos_emb_head_dim": Word("model.latent_attention.qk_pos_emb_head_dim"),
    "v_head_dim": Word("model.latent_attention.v_head_dim"),
    "hybrid_layer_pattern": Word("model.layer_pattern"),
    "hybrid_override_pattern": Word("model.layer_pattern"),
    "is_hybrid_model": Word("model.layer_pattern", default=False),
    "hybrid_attention_ratio": Word("model.layer_pattern", default=0.0),
    "hybrid_mlp_ratio": Word("model.layer_pattern", default=0.0),
    "mamba_num_heads": Word("model.mamba.num_heads"),
    "mamba_head_dim": Word("model.mamba.head_dim", default=64),
    "mamba_state_dim": Word("model.mamba.state_dim", default=128),
    "mamba_num_groups": Word("model.mamba.num_groups", default=8),
    "window_size": Word("model.attention_window"),
    "window_attn_skip_freq": Word("model.full_attention_every"),
    "mtp_num_layers": Word("model.mtp_num_layers", default=0),
    "seq_length": Word("model.seq_length"),
    "encoder_seq_length": Word("model.seq_length"),
    "vocab_size": Word("model.vocab_size"),
    "padded_vocab_size": Word("model.vocab_size"),
    "pad_vocab_size_to": Word("model.vocab_size"),
    "make_vocab_size_divisible_by": Word("model.vocab_size"),
    "tokenizer_type": Word("model.vocab_size"),
    "swiglu": Word("model.activation", default=False),
    "squared_relu": Word("model.activation", default=False),
    "quick_geglu": Word("model.activation", default=False),
    "normalization": Word(
        "model.normalization",
        "LayerNorm",
        {
            "LayerNorm": "layer_norm",
            "RMSNorm": "rms_norm",
            "layernorm": "layer_norm",
            "rmsnorm": "rms_norm",
        },
    ),
    "qk_layernorm": Word("model.qk_norm", default=False),
    "position_embedding_type": Word(
        "model.position_embedding",
        values={
            "learned_absolute": "learned",
            "rope": "rope",
            "rotary": "rope",
            "yarn": "rope",
            "none": "none",
        },
    ),
    "use_rotary_position_embeddings": Word("model.position_embedding", default=False),
    "enable_gpt_oss": Word("model.position_embedding", default=False),
    "add_bias_linear": Word("model.biases", default=True),
    "add_qkv_bias": Word("model.qkv_biases", default=False),
    "hidden_dropout": Word("model.hidden_dropout", default=0.1),
    "attention_dropout": Word("model.attention_dropout", default=0.1),
    "untie_embeddings_and_output_weights": Word("model.tied_embeddings", default=False),
    "tensor_model_parallel_size": Word("parallelism.tensor"),
    "sequence_parallel": Word("parallelism.sequence_parallel", default=False),
    "pipeline_model_parallel_size": Word("parallelism.pipeline"),
    "num_layers_per_virtual_pipeline_stage": Word("parallelism.interleave"),
    "num_virtual_stages_per_pipeline_rank": Word("parallelism.interleave"),
    "virtual_pipeline_model_parallel_size": Word("parallelism.interleave"),
    "microbatch_group_size_per_vp_stage": Word("parallelism.microbatch_group_size"),
    "decoder_first_pipeline_num_layers": Word("parallelism.first_stage_layers"),
    "decoder_last_pipeline_num_layers": Word("parallelism.last_stage_layers"),
    "account_for_embedding_in_pipeline_split": Word(
        "parallelism.first_stage_layers", default=False
    ),
    "account_for_loss_in_pipeline_split": Word("parallelism.last_stage_layers", default=False),
    "pipeline_model_parallel_layout": Word("parallelism.layout"),
    "context_parallel_size": Word("parallelism.context"),
    "cp_comm_type": Word("parallelism.context_communication", "p2p", _CONTEXT_COMMUNICATION),
    "hierarchical_context_parallel_sizes": Word("parallelism.context_a2a"),
    "num_experts": Word("model.experts.num"),
    "moe_router_topk": Word("model.experts.top_k", default=2),
    "moe_ffn_hidden_size": Word("model.experts.ffn_hidden_size"),
    "moe_shared_expert_intermediate_size": Word("model.experts.shared_ffn_hidden_size", default=0),
    "moe_layer_freq": Word("model.experts.first_dense_layers"),
    "moe_expert_capacity_factor": Word("model.experts.capacity_factor"),
    "moe_pad_expert_input_to_capacity": Word("model.experts.capacity_factor", default=False),
    "moe_router_dtype": Word("model.experts.router_dtype", "fp32", as_they_are("fp32", "fp64")),
    "moe_router_score_function": Word(
        "model.experts.router_score", "softmax", as_they_are("softmax", "sigmoid")
    ),
    "moe_router_enable_expert_bias": Word("model.experts.router_bias", default=False),
    "moe_router_num_groups": Word("model.experts.router_groups", default=0),
    "moe_router_group_topk": Word("model.experts.router_group_top_k", default=0),
    "expert_model_parallel_size": Word("parallelism.expert", default=0),
    "expert_tensor_parallel_size": Word("parallelism.expert_tensor", default=0),
    "moe_token_dispatcher_type": Word("parallelism.expert_dispatch", "allgather", _DISPATCH),
    "moe_flex_dispatcher_backend": Word(
        "parallelism.expert_dispatch", next(iter(_FLEX_BACKENDS)), _FLEX_BACKENDS
    ),
    "moe_enable_deepep": Word("parallelism.expert_dispatch", default=False),
    "moe_shared_expert_overlap": Word("overlap.shared_expert", default=False),
    "overlap_moe_expert_parallel_comm": Word("overlap.merged_passes", default=False),
    "delay_wgrad_compute": Word("overlap.delayed_weight_gradients", default=False),
    "world_size": Word("parallelism.data"),
    "data_parallel_size": Word("parallelism.data"),
    "scatter_gather_tensors_in_pipeline": Word("parallelism.scatter_gather", default=False),
    "use_tp_pp_dp_mapping": Word("placement.order", default=False),
    "micro_batch_size": Word("batch.micro"),
    "global_batch_size": Word("batch.global"),
    "step_batch_size_schedule": Word("batch.global"),
    "recompute_activations": Word("recompute.strategy", default=False),
    "checkpoint_activations": Word("recompute.strategy", default=False),
    "recompute_granularity": Word(
        "recompute.strategy", values=as_they_are("full", "selective", "none")
    ),
    "recompute_modules": Word("recompute.modules"),
    "moe_layer_recompute": Word("recompute.modules", default=False),
    "recompute_method": Word("recompute.method", "uniform", as_they_are("uniform", "block")),
    "recompute_num_layers": Word("recompute.num_layers", default=1),
    "distribute_saved_activations": Word("recompute.distribute", default=False),
    "num_microbatches_with_partial_activation_checkpoints": Word(
        "recompute.keep_microbatches", default=0
    ),
    "cpu_offloading_num_layers": Word("offload.layers", default=0),
    "fine_grained_activation_offloading": Word("offload.modules", default=False),
    "offload_modules": Word("offload.modules"),
    "use_distributed_optimizer": Word("memory.zero_stage", default=False),
    "use_megatron_fsdp": Word("memory.zero_stage", default=False),
    "use_custom_fsdp": Word("memory.zero_stage", default=False),
    "data_parallel_sharding_strategy": Word("memory.zero_stage", "no_shard", _ZERO_STAGES),
    "use_torch_fsdp2": Word("memory.zero_stage", default=False),
    "torch_fsdp2_reshard_after_forward": Word("memory.reshard_after_forward", default=True),
    "num_distributed_optimizer_instances": Word("memory.shard_over"),
    "optimizer_cpu_offload": Word("memory.offload_optimizer", default=False),
    "cpu_optimizer": Word("memory.offload_optimizer", default=False),
    "zero_stage": Word("memory.zero_stage"),
    "deepspeed": Word("software.stack", default=False),
    "deepspeed_config": Word("software.stack"),
    "attention_backend": Word("attention_backend", "auto", _BACKENDS),
    "use_flash_attn": Word("attention_backend", default=False),
    "transformer_impl": Word("attention_backend"),
    "masked_softmax_fusion": Word("software.fused_softmax", default=True),
    "apply_rope_fusion": Word("software.fused_rotary", default=True),
    "bias_gelu_fusion": Word("software.fused_activation", default=True),
    "bias_swiglu_fusion": Word("software.fused_activation", default=True),
    "bias_dropout_fusion": Word("software.fused_dropout_add", default=True),
    "gradient_accumulation_fusion": Word("software.fused_gradient_accumulation", default=True),
    "cross_entropy_loss_fusion": Word("software.fused_cross_entropy", default=False),
    "cross_entropy_fusion_impl": Word(
        "software.cross_entropy_fusion", "native", as_they_are("native", "te")
    ),
    "enable_cuda_graph": Word("software.cuda_graphs"),
    "external_cuda_graph": Word("software.cuda_graphs"),
    "cuda_graph_impl": Word("software.cuda_graphs"),
    "bf16": Word("precision.compute", default=False),
    "fp16": Word("precision.compute", default=False),
    "fp8": Word("precision.compute"),
    "fp8_recipe": Word(
        "precision.fp8_recipe",
        "delayed",
        as_they_are("delayed", "tensorwise", "blockwise", "mxfp8"),
    ),
    "fp4": Word("precision.compute"),
    "fp4_recipe": Word("precision.compute", "nvfp4", {"nvfp4": "fp4"}),
    "first_last_layers_bf16": Word("precision.first_layers_bf16", default=False),
    "num_layers_at_start_in_bf16": Word("precision.first_layers_bf16", default=1),
    "num_layers_at_end_in_bf16": Word("precision.last_layers_bf16", default=1),
    "fp8_param_gather": Word("precision.fp8_parameters", default=False),
    "fp8_param": Word("precision.fp8_parameters", default=False),
    "use_precision_aware_optimizer": Word("precision.main_parameters", default=False),
    "main_params_dtype": Word("precision.main_parameters"),
    "exp_avg_dtype": Word("precision.exp_avg"),
    "exp_avg_sq_dtype": Word("precision.exp_avg_sq"),
    "accumulate_allreduce_grads_in_fp32": Word("precision.gradients", default=False),
    "grad_reduce_in_bf16": Word("precision.gradients", default=False),
    "tp_comm_overlap": Word("overlap.userbuffers", default=False),
    "overlap_p2p_comm": Word("overlap.pipeline", default=True),
    "overlap_grad_reduce": Word("overlap.data_parallel", default=False),
    "overlap_param_gather": Word("overlap.parameter_gather", default=False),
    "align_grad_reduce": Word("overlap.align_gradient_reduction", default=True),
    "align_param_gather": Word("overlap.align_parameter_gather", default=True),
    "ddp_bucket_size": Word("overlap.gradient_buckets"),
}
"""The field that each argument sets, alone or together with others."""


_FP4_WEIGHTS = "weights gathered and kept in fp4: fewer bytes; the scenario has bf16"
_PADDING = "ranks pad the tokens of each expert before they send them: more rows, fewer kernels"
_KERNEL = "other kernels, which read and write activations more often: slower"
NOT_MODELLED: dict[str, Effect] = {
    # Model.
    "moe_router_pre_softmax": Effect("a softmax over all experts instead of the chosen ones"),
    "moe_z_loss_coeff": Effect("one more loss: kernels over one number per token and expert"),
    "moe_input_jitter_eps": Effect("one more kernel, which multiplies the router's input by noise"),
    "moe_deepep_num_sms": Effect(
        "another number of multiprocessors for DeepEP, and another bandwidth", ("20",)
    ),
    "moe_hybridep_num_sms": Effect(
        "another number of multiprocessors for HybridEP, and another bandwidth", ("16",)
    ),
    "overlap_dispatch_backward_with_experts_wgrad": Effect(
        "weight gradients of experts hide an all-to-all: faster"
    ),
    "moe_paged_stash": Effect(
        "saved activations of experts in one buffer", details="moe_expert_rank_capacity_factor"
    ),
    "moe_apply_probs_on_input": Effect(
        "router probabilities scale the inputs of experts instead of their outputs"
    ),
    "moe_use_legacy_grouped_gemm": Effect(
        "other kernels for the products of experts", active=("True",)
    ),
    "moe_extended_tp": Effect("each expert is sharded over all ranks of its group"),
    "use_fused_weighted_squared_relu": Effect("another kernel for the activation of experts"),
    "openai_gelu": Effect(_KERNEL),
    "embed_layernorm": Effect("a norm of the embedding: slightly more elementwise work"),
    "max_position_embeddings": Effect("another size of the table of learned positions: memory"),
    "relative_attention_num_buckets": Effect("a bias by relative position in attention", ("32",)),
    "softmax_type": Effect("one more weight per head", ("vanilla",)),
    "qk_l2_norm": Effect("norms of queries and keys: more elementwise work"),
    "moe_latent_size": Effect("experts between two projections: smaller products", is_large=True),
    "enable_hyper_connections": Effect(
        "several residual streams: more elementwise work, and more memory",
        details="""
        num_residual_streams mhc_sinkhorn_iterations mhc_init_gating_factor use_fused_mhc
        recompute_hyper_connections""",
        is_large=True,
    ),
    "attention_output_gate": Effect("a gate of each head's output: more columns of one product"),
    "moe_shared_expert_gate": Effect("a gate of the shared expert: one more product of one column"),
    "moe_router_force_biased": Effect("other numbers of tokens for the experts of a rank"),
    "apply_residual_connection_post_layernorm": Effect("more saved activations"),
    "no_rope_freq": Effect("layers without rotary embeddings"),
    "rotary_percent": Effect("the rotary embedding rotates fewer channels", ("1.0", "1")),
    "vocab_extra_ids": Effect("more rows of the embedding", ("0",)),
    "heterogeneous_layers_config_path": Effect("layers of different kinds"),
    "heterogeneous_layers_config_encoded_json": Effect("layers of different kinds"),
    "spec": Effect("layers with another specification"),
    "perform_rl_step": Effect(
        "generation of samples in every iteration",
        details="""
        rl_prompts_per_eval rl_offload_optimizer_during_inference rl_partial_rollouts
        rl_offload_kv_cache_during_training rl_remove_kv_cache_during_training rl_reset_cuda_graphs
        rl_inference_logprobs_is_correction rl_importance_sampling_truncation_coef
        rl_calculate_intra_group_similarity rl_use_sequence_packing rl_sequence_packing_bin_size
        rl_sequence_packing_algo grpo_prompts_per_step grpo_group_size grpo_iterations
        grpo_clamp_eps_lower grpo_clamp_eps_upper grpo_kl_beta grpo_entropy_term_weight
        grpo_filter_groups_with_same_reward grpo_default_temperature grpo_default_top_p
        langrl_inference_server_type langrl_inference_server_conversation_template
        langrl_external_server langrl_env_config""",
    ),
    "use_legacy_models": Effect("legacy layers, with other kernels"),
    "engram_max_ngram_size": Effect(
        "tables of n-grams: memory, lookups and all-to-alls",
        details="""
        engram_hash_table_min_sizes engram_embedding_dim_per_ngram engram_num_hash_heads_per_ngram
        engram_layer_ids engram_target_layer_indices engram_table_backend engram_seed
        engram_kernel_size""",
        is_large=True,
    ),
    "export_kd_teacher_load": Effect(
        "the forward pass of a teacher in every iteration",
        details="export_kd_cfg export_kd_teacher_model_config export_kd_teacher_ckpt_format "
        "teacher_model_config",
        is_large=True,
    ),
    "export_quant_cfg": Effect("simulated quantization of weights and activations"),
    # Precision.
    "moe_router_padding_for_fp8": Effect(_PADDING),
    "moe_router_padding_for_quantization": Effect(_PADDING),
    "fp8_wgrad": Effect("weight gradients in bf16: slower", ("True",)),
    "keep_fp8_transpose_cache": Effect("Megatron-FSDP keeps transposed weights: more memory"),
    "fp4_param": Effect(_FP4_WEIGHTS),
    "fp4_param_gather": Effect(_FP4_WEIGHTS),
    "kitchen_config_file": Effect("quantized products"),
    "kitchen_recipe_number": Effect("quantized products"),
    "fp32_residual_connection": Effect("residuals in fp32: more bytes to read, write and save"),
    "attention_softmax_in_fp32": Effect("an fp32 softmax in unfused attention: slower"),
    "apply_query_key_layer_scaling": Effect("an fp32 softmax in unfused attention: slower"),
    "fp16_lm_cross_entropy": Effect("the loss in fp16: half the memory of the logits"),
    "megatron_fsdp_main_params_dtype": Effect(
        "main parameters of Megatron-FSDP in another dtype: memory", ("fp32", "auto")
    ),
    "megatron_fsdp_main_grads_dtype": Effect(
        "gradients of Megatron-FSDP are stored in another dtype: memory", ("auto",)
    ),
    "megatron_fsdp_grad_comm_dtype": Effect(
        "gradients of Megatron-FSDP are reduced in another dtype: time", ("auto",)
    ),
    "te_precision_config_file": Effect("products of some layers in another precision"),
    "main_grads_dtype": Effect(
        "gradients stored in another dtype than they are reduced in", ("fp32", "torch.float32")
    ),
    # Kernels.
    "no_persist_layer_norm": Effect(_KERNEL),
    "export_force_local_attention": Effect(
        "attention without a fused kernel: slower, and more memory"
    ),
    "jit_fuser": Effect(_KERNEL, ("True",)),
    "use_transformer_engine_op_fuser": Effect("fewer kernels per MLP: faster"),
    "batch_invariant_mode": Effect("kernels with the same sums for any batch: slower"),
    "use_te_activation_func": Effect("another kernel for the activation"),
    "deterministic_mode": Effect("deterministic kernels: slower", active=("True",)),
    "cuda_graph_modules": Effect(
        "CUDA graphs of parts of a layer: the host launches the other kernels one by one"
    ),
    "cuda_graph_scope": Effect(
        "CUDA graphs of parts of a layer: the host launches the other kernels one by one", ("full",)
    ),
    # Parallelism and communication.
    "pipeline_model_parallel_split_rank": Effect("encoder and decoder on separate stages"),
    "overlap_p2p_comm_warmup_flush": Effect("transfers also overlap in warm-up and cool-down"),
    "defer_embedding_wgrad_compute": Effect(
        "weight gradients of the output layer run in bubbles of the last stage",
        details="wgrad_deferral_limit",
    ),
    "overlap_param_gather_with_optimizer_step": Effect(
        "the gather of parameters overlaps with the optimizer"
    ),
    "ddp_num_buckets": Effect("gradient buckets of another size"),
    "ddp_reduce_scatter_with_fp32_accumulation": Effect(
        "gradients are reduced by all-to-alls with sums in fp32"
    ),
    "use_nccl_ub": Effect("NCCL uses fewer SMs during kernels"),
    "nccl_ub": Effect("NCCL uses fewer SMs during kernels"),
    "use_sharp": Effect(
        "switches reduce in the network: faster collectives", details="sharp_enabled_group"
    ),
    "symmetric_ar_type": Effect("other all-reduce kernels"),
    "nccl_communicator_config_path": Effect("NCCL with another number of SMs"),
    "pipeline_model_parallel_comm_backend": Effect(
        "pipeline transfers by another library", ("nccl",)
    ),
    "use_ring_exchange_p2p": Effect("pipeline transfers by another library"),
    "distributed_backend": Effect("another library for all communication", ("nccl",)),
    "suggested_communication_unit_size": Effect("parameters are gathered in units of another size"),
    "fsdp_double_buffer": Effect(
        "gathered parameters use two buffers that are never freed: more memory",
        details="fsdp_db_use_persist_buf_on_alloc_fail megatron_fsdp_max_pool_double_buffer",
    ),
    "use_megatron_fsdp_v2": Effect("another implementation of Megatron-FSDP"),
    "megatron_fsdp_version": Effect("another implementation of Megatron-FSDP", ("1",)),
    "outer_dp_sharding_strategy": Effect(
        "replicas share the optimizer states: less memory", ("no_shard",)
    ),
    "enable_full_sharding_in_hsdp": Effect(
        "optimizer states are sharded over all replicas: less memory"
    ),
    # Batch, memory and optimizer.
    "curriculum_learning": Effect("the first iterations have shorter sequences: faster"),
    "data_efficiency_curriculum_learning": Effect(
        "the first iterations have shorter sequences: faster",
        details="curriculum_learning_legacy",
    ),
    "random_ltd": Effect("some layers skip tokens: faster"),
    "pp_partition_method": Effect("stages with other numbers of layers", ("type:transformer",)),
    "ds_sequence_parallel_size": Effect("sequences are split over ranks by all-to-alls", ("1",)),
    "ds_sequence_parallel_fpdt": Effect(
        "sequences are processed in chunks, kept on the host",
        details="ds_sequence_parallel_fpdt_chunk_size ds_sequence_parallel_fpdt_offloading",
    ),
    "cpu_torch_adam": Effect("another implementation of Adam on the host"),
    "create_moe_param_group": Effect("experts have an optimizer group of their own"),
    "yaml_cfg": Effect("arguments in another file, which the import does not read"),
    "use_checkpoint_args": Effect("the checkpoint sets the model's arguments"),
    "use_mp_args_from_checkpoint_args": Effect("the checkpoint sets the parallelism"),
    "variable_seq_lengths": Effect("microbatches of different lengths"),
    "rampup_batch_size": Effect("the first iterations have smaller batches"),
    "dynamic_context_parallel": Effect(
        "microbatches of different lengths over different numbers of ranks",
        details="max_seqlen_per_dp_cp_rank min_dynamic_context_parallel_size",
    ),
    "sequence_packing": Effect(
        "microbatches of several packed sequences", details="sequence_packing_scheduler"
    ),
    "decoder_seq_length": Effect("the decoder has another sequence length"),
    "min_offloaded_tensor_size": Effect("smaller tensors stay on the GPU"),
    "optimizer_offload_fraction": Effect(
        "the remaining optimizer states stay on the GPU", ("1.0", "1")
    ),
    "overlap_cpu_optimizer_d2h_h2d": Effect(
        "copies to and from the host overlap with the optimizer"
    ),
    "use_torch_optimizer_for_cpu_offload": Effect("another implementation of Adam on the host"),
    "qk_clip": Effect(
        "weights of queries and keys are scaled in every iteration",
        details="qk_clip_alpha qk_clip_threshold",
    ),
    "use_layer_wise_distributed_optimizer": Effect(
        "whole layers of optimizer states per rank: other communication",
        is_large=True,
    ),
    "optimizer": Effect(
        "an optimizer with other states and kernels",
        ("adam",),
        """
        sgd_momentum muon_momentum muon_split_qkv muon_use_nesterov muon_scale_mode
        muon_fp32_matmul_prec muon_num_ns_steps muon_tp_mode muon_extra_scale_factor""",
        is_large=True,
    ),
    "empty_unused_memory_level": Effect(
        "the allocator frees its cache in every iteration: slower", ("0",)
    ),
    "check_weight_hash_across_dp_replicas_interval": Effect(
        "replicas compare their weights in some iterations"
    ),
    "clip_grad": Effect("no gradient norm, and no barrier for it", active=("0", "0.0")),
    "timing_log_level": Effect("timers that synchronize the GPU: slower", active=("1", "2")),
    "disable_mamba_mem_eff_path": Effect(
        "the mixer of a Mamba-2 layer saves the convolution's output, the time steps and the gate "
        "too, and does not run the convolution again"
    ),
    "log_params_norm": Effect("one more norm of all parameters in logged iterations"),
    "log_num_zeros_in_grad": Effect("one more pass over the gradients"),
}

_SPARSE = "attention with an index of the tokens that each query reads"
_VISION = "the vision encoder"
OTHER_MODELS: dict[str, Effect] = {
    "decoder_num_layers": Effect("a decoder with attention to an encoder"),
    "experimental_attention_variant": Effect("another kind of attention"),
    "linear_attention_type": Effect("the linear attention layers"),
    "linear_attention_freq": Effect(
        "the linear attention layers",
        details="""
        linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads
        linear_num_value_heads""",
    ),
    "csa_window_size": Effect(
        _SPARSE,
        details="""
        csa_compress_ratios csa_compress_ratio_for_c csa_compress_ratio_for_h
        csa_compress_rotary_base o_groups o_lora_rank""",
    ),
    "dsa_indexer_topk": Effect(
        _SPARSE,
        details="""
        dsa_indexer_n_heads dsa_indexer_head_dim dsa_indexer_loss_coeff dsa_indexer_precision
        dsa_indexer_use_sparse_loss""",
    ),
    "retro_add_retriever": Effect(
        "the retrieval encoder",
        details="""
        retro_project_dir retro_cyclic_train_iters retro_encoder_layers retro_encoder_hidden_dropout
        retro_encoder_attention_dropout retro_num_neighbors retro_num_retrieved_chunks
        retro_attention_gate retro_verify_neighbor_count""",
    ),
    "vision_pretraining": Effect(_VISION),
    "vision_model_type": Effect(_VISION),
    "language_model_type": Effect(_VISION),
}
"""The part of the model that is missing in simtrain, for arguments that define other models."""

_EXPOSED_GATHER = Effect("all-gathers are exposed before their products: slower", ("True",))
_EXPOSED_SCATTER = Effect("reduce-scatters are exposed after their products: slower", ("True",))
USERBUFFERS: dict[str, Effect] = {
    "tp_comm_overlap_cfg": Effect("methods and chunks other than Transformer Engine's defaults"),
    "tp_comm_overlap_ag": _EXPOSED_GATHER,
    "tp_comm_split_ag": _EXPOSED_GATHER,
    "tp_comm_overlap_rs": _EXPOSED_SCATTER,
    "tp_comm_split_rs": _EXPOSED_SCATTER,
    "tp_comm_overlap_rs_dgrad": Effect("input gradients are reduce-scattered chunk by chunk"),
    "tp_comm_bulk_dgrad": Effect(
        "NCCL all-gathers during input gradients, without a copy", ("True",)
    ),
    "tp_comm_bulk_wgrad": Effect("NCCL reduce-scatters during weight gradients", ("True",)),
}
"""Effects of arguments that are not modelled and apply only with tp_comm_overlap."""

DETAILS: dict[str, str] = {
    detail: name
    for name, effect in (NOT_MODELLED | OTHER_MODELS).items()
    for detail in effect.details.split()
} | dict.fromkeys(USERBUFFERS, "tp_comm_overlap")
"""Arguments that only refine another argument, each with that argument."""

TABLE = Table(
    kind="argument",
    source="Megatron-LM",
    mapped=MAPPED,
    not_modelled=NOT_MODELLED,
    # Other models are refused before the table is read.
    without_effect=WITHOUT_EFFECT | OTHER_MODELS.keys(),
    details=DETAILS,
)
KNOWN = TABLE.words

# Flags with another name than the printed argument; False means that the flag turns it off. All
# other flags that begin with "no-" or "disable-" turn off the argument named after the prefix.
_GROUP_SIZE = "microbatch_group_size_per_vp_stage"
SPELLINGS: dict[str, tuple[str, bool]] = {
    "fp8_format": ("fp8", True),
    "fp4_format": ("fp4", True),
    "microbatch_group_size_per_virtual_pipeline_stage": (_GROUP_SIZE, True),
    "no_overlap_p2p_communication": ("overlap_p2p_comm", False),
    "overlap_p2p_communication_warmup_flush": ("overlap_p2p_comm_warmup_flush", True),
    # The names before August 2024 (core 0.9). Until then, parameter gathers were not aligned by
    # default, which logs print.
    "delay_grad_reduce": ("align_grad_reduce", True),
    "no_delay_grad_reduce": ("align_grad_reduce", False),
    "delay_param_gather": ("align_param_gather", True),
    "disable_bias_linear": ("add_bias_linear", False),
    "export_qk_l2_norm": ("qk_l2_norm", True),
    "export_moe_apply_probs_on_input": ("moe_apply_probs_on_input", True),
    "no_position_embedding": ("add_position_embedding", False),
    "no_rope_fusion": ("apply_rope_fusion", False),
    # Megatron-LM before 2022, and Megatron-DeepSpeed.
    "checkpoint_num_layers": ("recompute_num_layers", True),
    "activations_checkpoint_num_layers": ("recompute_num_layers", True),
    "activations_checkpoint_method": ("recompute_method", True),
    "distribute_checkpointed_activations": ("distribute_saved_activations", True),
    "moe_expert_parallel_size": ("expert_model_parallel_size", True),
    "topk": ("moe_router_topk", True),
    "use_flash_attn_v1": ("use_flash_attn", True),
    "use_flash_attn_v2": ("use_flash_attn", True),
    "use_flash_attn_triton": ("use_flash_attn", True),
    "no_query_key_layer_scaling": ("apply_query_key_layer_scaling", False),
    "no_initialization": ("perform_initialization", False),
    "no_one_logger": ("enable_one_logger", False),
    "disable_msc": ("enable_msc", False),
    "disable_gloo_process_groups": ("enable_gloo_process_groups", False),
    "muon_no_split_qkv": ("muon_split_qkv", False),
    "torch_fsdp2_no_reshard_after_forward": ("torch_fsdp2_reshard_after_forward", False),
    "retro_no_verify_neighbor_count": ("retro_verify_neighbor_count", False),
    "bert_no_binary_head": ("bert_binary_head", False),
}
