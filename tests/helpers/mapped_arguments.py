"""An example of each argument of Megatron-LM that is mapped."""

DISTRIBUTED = "--world-size 2 --use-distributed-optimizer"
EXPERTS = "--disable-bias-linear --world-size 4 --num-experts 8"
MAPPED_EXAMPLES = {
    "num_layers": "--num-layers 12",
    "encoder_num_layers": None,
    "hidden_size": "--hidden-size 2048",
    "ffn_hidden_size": "--ffn-hidden-size 2048",
    "num_attention_heads": "--num-attention-heads 8",
    "group_query_attention": "--num-query-groups 4 --group-query-attention",
    "num_key_value_heads": "--num-key-value-heads 4",
    "num_query_groups": "--group-query-attention --num-query-groups 4",
    "kv_channels": "--kv-channels 128",
    **{
        name: f"--multi-latent-attention --{name.replace('_', '-')} 96"
        for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "v_head_dim")
    },
    "multi_latent_attention": "--multi-latent-attention",
    "qk_pos_emb_head_dim": "--multi-latent-attention --qk-pos-emb-head-dim 32",
    "hybrid_layer_pattern": f"--hybrid-layer-pattern {12 * 'M-'}",
    "hybrid_override_pattern": f"--hybrid-override-pattern {12 * 'M-'}",
    "is_hybrid_model": "--is-hybrid-model",
    "hybrid_attention_ratio": None,
    "hybrid_mlp_ratio": None,
    "mamba_num_heads": "--is-hybrid-model --mamba-num-heads 64",
    "mamba_head_dim": "--is-hybrid-model --mamba-head-dim 128",
    "mamba_state_dim": "--is-hybrid-model --mamba-state-dim 256",
    "mamba_num_groups": "--is-hybrid-model --mamba-num-groups 4",
    "window_size": "--window-size 127,0",
    "window_attn_skip_freq": "--window-size 127,0 --window-attn-skip-freq 2",
    "mtp_num_layers": "--position-embedding-type rope --mtp-num-layers 1",
    "seq_length": "--max-position-embeddings 1024 --seq-length 1024",
    "encoder_seq_length": None,
    "vocab_size": "--vocab-size 32000",
    "padded_vocab_size": "--padded-vocab-size 32000",
    "pad_vocab_size_to": "--pad-vocab-size-to 32000",
    "make_vocab_size_divisible_by": "--make-vocab-size-divisible-by 1024",
    "tokenizer_type": "--vocab-size 32000 --tokenizer-type NullTokenizer",
    "swiglu": "--swiglu",
    "squared_relu": "--squared-relu",
    "quick_geglu": "--quick-geglu",
    "normalization": "--normalization RMSNorm",
    "qk_layernorm": "--qk-layernorm",
    "position_embedding_type": "--position-embedding-type rope",
    "use_rotary_position_embeddings": "--use-rotary-position-embeddings",
    "enable_gpt_oss": "--enable-gpt-oss",
    "add_bias_linear": "--disable-bias-linear",
    "add_qkv_bias": "--disable-bias-linear --add-qkv-bias",
    "hidden_dropout": "--hidden-dropout 0",
    "attention_dropout": "--attention-dropout 0.0",
    "untie_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "tensor_model_parallel_size": "--tensor-model-parallel-size 2",
    "sequence_parallel": "--tensor-model-parallel-size 2 --sequence-parallel",
    "pipeline_model_parallel_size": "--pipeline-model-parallel-size 2",
    "num_layers_per_virtual_pipeline_stage": "--pipeline-model-parallel-size 4 "
    "--global-batch-size 4 --num-layers-per-virtual-pipeline-stage 3",
    "num_virtual_stages_per_pipeline_rank": "--pipeline-model-parallel-size 4 "
    "--global-batch-size 4 --num-virtual-stages-per-pipeline-rank 2",
    "virtual_pipeline_model_parallel_size": "--pipeline-model-parallel-size 4 "
    "--global-batch-size 4 --virtual-pipeline-model-parallel-size 2",
    "microbatch_group_size_per_vp_stage": "--pipeline-model-parallel-size 2 --global-batch-size 4 "
    "--num-virtual-stages-per-pipeline-rank 2 "
    "--microbatch-group-size-per-virtual-pipeline-stage 4",
    "decoder_first_pipeline_num_layers": "--pipeline-model-parallel-size 2 "
    "--decoder-first-pipeline-num-layers 10",
    "decoder_last_pipeline_num_layers": "--pipeline-model-parallel-size 2 "
    "--decoder-last-pipeline-num-layers 10",
    "account_for_embedding_in_pipeline_split": "--num-layers 23 --pipeline-model-parallel-size 2 "
    "--account-for-embedding-in-pipeline-split",
    "account_for_loss_in_pipeline_split": "--num-layers 23 --pipeline-model-parallel-size 2 "
    "--account-for-loss-in-pipeline-split",
    "pipeline_model_parallel_layout": "--pipeline-model-parallel-size 2 "
    "--pipeline-model-parallel-layout 'Et*11|t*13L'",
    "context_parallel_size": "--context-parallel-size 2",
    "cp_comm_type": "--context-parallel-size 2 --cp-comm-type a2a",
    "hierarchical_context_parallel_sizes": "--context-parallel-size 8 --cp-comm-type a2a+p2p "
    "--hierarchical-context-parallel-sizes 2 4",
    "num_experts": EXPERTS,
    "moe_router_topk": f"{EXPERTS} --moe-router-topk 4",
    "moe_ffn_hidden_size": f"{EXPERTS} --moe-ffn-hidden-size 512",
    "moe_shared_expert_intermediate_size": f"{EXPERTS} --moe-shared-expert-intermediate-size 512",
    "moe_layer_freq": f"{EXPERTS} --moe-layer-freq ([0]*3+[1]*21)",
    "moe_expert_capacity_factor": f"{EXPERTS} --moe-token-dispatcher-type alltoall "
    "--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1.25",
    "moe_pad_expert_input_to_capacity": f"{EXPERTS} --moe-token-dispatcher-type alltoall "
    "--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity",
    "moe_router_score_function": f"{EXPERTS} --moe-router-score-function sigmoid",
    "moe_router_enable_expert_bias": f"{EXPERTS} --moe-router-score-function sigmoid "
    "--moe-router-enable-expert-bias",
    "moe_router_num_groups": f"{EXPERTS} --moe-router-group-topk 2 --moe-router-num-groups 4",
    "moe_router_group_topk": f"{EXPERTS} --moe-router-num-groups 4 --moe-router-group-topk 1",
    "moe_router_dtype": f"{EXPERTS} --moe-router-dtype fp32",
    "expert_model_parallel_size": f"{EXPERTS} --expert-model-parallel-size 4",
    "expert_tensor_parallel_size": f"{EXPERTS} --tensor-model-parallel-size 2 "
    "--sequence-parallel --expert-tensor-parallel-size 1",
    "moe_token_dispatcher_type": f"{EXPERTS} --moe-token-dispatcher-type alltoall",
    "moe_flex_dispatcher_backend": f"{EXPERTS} --expert-model-parallel-size 4 "
    "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
    "moe_enable_deepep": f"{EXPERTS} --expert-model-parallel-size 4 "
    "--moe-token-dispatcher-type flex --moe-enable-deepep",
    "moe_shared_expert_overlap": f"{EXPERTS} --moe-token-dispatcher-type alltoall "
    "--moe-shared-expert-intermediate-size 512 --moe-shared-expert-overlap",
    "overlap_moe_expert_parallel_comm": f"{EXPERTS} --moe-token-dispatcher-type alltoall "
    "--expert-model-parallel-size 4 --overlap-moe-expert-parallel-comm",
    "defer_embedding_wgrad_compute": "--pipeline-model-parallel-size 2 "
    "--defer-embedding-wgrad-compute",
    "wgrad_deferral_limit": "--pipeline-model-parallel-size 2 --defer-embedding-wgrad-compute "
    "--wgrad-deferral-limit 2",
    "delay_wgrad_compute": f"{EXPERTS} --moe-token-dispatcher-type alltoall "
    "--expert-model-parallel-size 4 --overlap-moe-expert-parallel-comm --delay-wgrad-compute",
    "world_size": "--world-size 4",
    "data_parallel_size": "--data-parallel-size 4",
    "scatter_gather_tensors_in_pipeline": "--no-scatter-gather-tensors-in-pipeline",
    "use_tp_pp_dp_mapping": "--use-tp-pp-dp-mapping",
    "micro_batch_size": "--micro-batch-size 2",
    "global_batch_size": "--global-batch-size 8",
    "step_batch_size_schedule": "--step-batch-size-schedule 0:4 1B:8",
    "recompute_activations": "--recompute-activations",
    "checkpoint_activations": "--checkpoint-activations",
    "recompute_granularity": "--recompute-granularity selective",
    "recompute_modules": "--transformer-impl local --recompute-granularity selective "
    "--recompute-modules core_attn layernorm mlp",
    "moe_layer_recompute": f"{EXPERTS} --moe-layer-recompute",
    "recompute_method": "--recompute-granularity full --recompute-method block",
    "recompute_num_layers": "--recompute-granularity full --recompute-num-layers 2",
    "distribute_saved_activations": "--tensor-model-parallel-size 2 --recompute-granularity full "
    "--distribute-saved-activations",
    "num_microbatches_with_partial_activation_checkpoints": "--recompute-granularity full "
    "--pipeline-model-parallel-size 2 --num-microbatches-with-partial-activation-checkpoints 1",
    "use_distributed_optimizer": "--world-size 2 --use-distributed-optimizer",
    "use_megatron_fsdp": "--world-size 2 --data-parallel-sharding-strategy optim "
    "--use-megatron-fsdp",
    "use_custom_fsdp": "--world-size 2 --data-parallel-sharding-strategy optim --use-custom-fsdp",
    "data_parallel_sharding_strategy": "--world-size 2 --use-megatron-fsdp "
    "--data-parallel-sharding-strategy optim_grads",
    "use_torch_fsdp2": "--world-size 2 --use-torch-fsdp2",
    "torch_fsdp2_reshard_after_forward": "--world-size 2 --use-torch-fsdp2 "
    "--torch-fsdp2-no-reshard-after-forward",
    "num_distributed_optimizer_instances": "--world-size 4 --use-distributed-optimizer "
    "--num-distributed-optimizer-instances 2",
    "cpu_offloading_num_layers": "--cpu-offloading-num-layers 4",
    "fine_grained_activation_offloading": "--offload-modules core_attn "
    "--fine-grained-activation-offloading",
    "offload_modules": "--fine-grained-activation-offloading --offload-modules core_attn",
    "optimizer_cpu_offload": "--optimizer-cpu-offload",
    "cpu_optimizer": "--cpu-optimizer",
    "zero_stage": "--deepspeed --world-size 2 --zero-stage 1",
    "deepspeed": None,
    "deepspeed_config": None,
    "attention_backend": "--attention-backend unfused",
    "use_flash_attn": "--transformer-impl local --use-flash-attn",
    "transformer_impl": "--transformer-impl local",
    "masked_softmax_fusion": "--attention-backend unfused --no-masked-softmax-fusion",
    "apply_rope_fusion": "--position-embedding-type rope --no-rope-fusion",
    "bias_gelu_fusion": "--no-bias-gelu-fusion",
    "bias_swiglu_fusion": "--swiglu --no-bias-swiglu-fusion",
    "bias_dropout_fusion": "--no-bias-dropout-fusion",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
    "cross_entropy_loss_fusion": "--cross-entropy-loss-fusion",
    "cross_entropy_fusion_impl": "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
    "enable_cuda_graph": "--enable-cuda-graph",
    "external_cuda_graph": "--external-cuda-graph",
    "cuda_graph_impl": "--cuda-graph-impl local",
    "cuda_graph_modules": "--cuda-graph-impl transformer_engine --cuda-graph-modules attn",
    "cuda_graph_scope": "--cuda-graph-impl transformer_engine --cuda-graph-scope attn",
    "bf16": "--bf16",
    "fp16": None,
    "fp8": "--fp8-format hybrid",
    "fp8_recipe": "--fp8-format hybrid --fp8-recipe tensorwise",
    "fp4": "--fp4-format e2m1",
    "fp4_recipe": "--fp4-format e2m1 --fp4-recipe nvfp4",
    "first_last_layers_bf16": "--fp4-format e2m1 --first-last-layers-bf16",
    "num_layers_at_start_in_bf16": "--fp4-format e2m1 --first-last-layers-bf16 "
    "--num-layers-at-start-in-bf16 2",
    "num_layers_at_end_in_bf16": "--fp4-format e2m1 --first-last-layers-bf16 "
    "--num-layers-at-end-in-bf16 0",
    "fp8_param_gather": f"{DISTRIBUTED} --fp8-format hybrid --fp8-param-gather",
    "fp8_param": None,
    "use_precision_aware_optimizer": f"{DISTRIBUTED} --use-precision-aware-optimizer",
    "main_params_dtype": f"{DISTRIBUTED} --use-precision-aware-optimizer --main-params-dtype fp32",
    "exp_avg_dtype": f"{DISTRIBUTED} --use-precision-aware-optimizer --exp-avg-dtype bf16",
    "exp_avg_sq_dtype": f"{DISTRIBUTED} --use-precision-aware-optimizer --exp-avg-sq-dtype bf16",
    "accumulate_allreduce_grads_in_fp32": "--accumulate-allreduce-grads-in-fp32",
    "grad_reduce_in_bf16": "--grad-reduce-in-bf16",
    "tp_comm_overlap": "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
    "overlap_p2p_comm": "--pipeline-model-parallel-size 4 --global-batch-size 4 "
    "--num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication",
    "overlap_grad_reduce": "--overlap-grad-reduce",
    "overlap_param_gather": "--world-size 2 --use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather",
    "align_grad_reduce": "--world-size 4 --pipeline-model-parallel-size 2 --overlap-grad-reduce "
    "--no-align-grad-reduce",
    "align_param_gather": "--world-size 8 --pipeline-model-parallel-size 4 --global-batch-size 8 "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
    "--num-virtual-stages-per-pipeline-rank 2 --no-align-param-gather",
    "ddp_bucket_size": "--world-size 2 --overlap-grad-reduce --ddp-bucket-size 10000000",
}
