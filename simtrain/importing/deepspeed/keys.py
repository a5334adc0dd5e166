"""Keys of DeepSpeed's JSON, as `section.key`: mapped, without effect, or not modelled.

Source: docs/_pages/config-json.md and runtime/zero/config.py of deepspeedai/DeepSpeed (2025).
"""

from __future__ import annotations

from simtrain.importing.settings import Effect
from simtrain.importing.table import Table, Word

_DTYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}
_ZERO = "zero_optimization"

MAPPED: dict[str, Word] = {
    "train_batch_size": Word("batch.global"),
    "train_micro_batch_size_per_gpu": Word("batch.micro"),
    "gradient_accumulation_steps": Word("batch.global"),
    _ZERO: Word("memory.zero_stage", False),
    f"{_ZERO}.stage": Word("memory.zero_stage", 0),
    f"{_ZERO}.overlap_comm": Word("overlap.data_parallel"),
    f"{_ZERO}.offload_optimizer.device": Word("memory.offload_optimizer", "none"),
    f"{_ZERO}.cpu_offload": Word("memory.offload_optimizer", False),
    f"{_ZERO}.zero_hpz_partition_size": Word("memory.reshard_after_forward", 1),
    f"{_ZERO}.mics_shard_size": Word("memory.shard_over", -1),
    "fp16.enabled": Word("precision.compute", False),
    "bf16.enabled": Word("precision.compute", False),
    "bfloat16.enabled": Word("precision.compute", False),
    "data_types.grad_accum_dtype": Word("precision.gradients", values=_DTYPES),
    "tensor_parallel.autotp_size": Word("parallelism.tensor", 0),
    "activation_checkpointing.partition_activations": Word("recompute.distribute", False),
}
"""The keys that set fields, alone or together with others."""

_LIVE = "stage 3 keeps more or fewer gathered parameters: memory, and another number of gathers"
_GATHER = "stage 3 gathers parameters further or less far ahead"
NOT_MODELLED: dict[str, Effect] = {
    f"{_ZERO}.offload_param.device": Effect(
        "parameters on the host: less memory, and copies before each layer: slower", ("none",)
    ),
    f"{_ZERO}.cpu_offload_param": Effect(
        "parameters on the host: less memory, and copies before each layer: slower"
    ),
    f"{_ZERO}.offload_optimizer.ratio": Effect(
        "the remaining optimizer states stay on the GPU", ("1.0", "1")
    ),
    f"{_ZERO}.offload_optimizer.nvme_path": Effect("copies to and from disks: slower"),
    f"{_ZERO}.reduce_scatter": Effect(
        "gradients are summed by all-reduces: slower", ("True",), active=("False",)
    ),
    f"{_ZERO}.allgather_partitions": Effect(
        "parameters are sent by broadcasts: slower", ("True",), active=("False",)
    ),
    f"{_ZERO}.contiguous_gradients": Effect(
        "gradients are not copied to one buffer: fragmented memory", ("True",), active=("False",)
    ),
    f"{_ZERO}.reduce_bucket_size": Effect(
        "gradients are reduced in buckets of this size", ("500000000", "500000000.0", "auto")
    ),
    f"{_ZERO}.allgather_bucket_size": Effect(
        "parameters are gathered in buckets of this size", ("500000000", "500000000.0", "auto")
    ),
    f"{_ZERO}.stage3_prefetch_bucket_size": Effect(_GATHER, ("50000000", "50000000.0", "auto")),
    f"{_ZERO}.stage3_param_persistence_threshold": Effect(
        "small parameters stay on every GPU: a little more memory, fewer gathers",
        ("100000", "100000.0", "auto"),
    ),
    f"{_ZERO}.stage3_model_persistence_threshold": Effect(_LIVE, ("auto",)),
    f"{_ZERO}.stage3_max_live_parameters": Effect(_LIVE, ("1000000000", "1000000000.0")),
    f"{_ZERO}.stage3_max_reuse_distance": Effect(_LIVE, ("1000000000", "1000000000.0")),
    f"{_ZERO}.stage3_use_all_reduce_for_fetch_params": Effect("parameters come by all-reduces"),
    f"{_ZERO}.zero_quantized_weights": Effect("parameters are gathered in 8 bits: faster"),
    f"{_ZERO}.zero_quantized_gradients": Effect("gradients are reduced in 4 bits: faster"),
    f"{_ZERO}.mics_hierarchical_params_gather": Effect("gathers in two steps, by node"),
    f"{_ZERO}.round_robin_gradients": Effect("another order of copies of gradients to the host"),
    f"{_ZERO}.legacy_stage1": Effect("an older implementation of stage 1"),
    "activation_checkpointing.cpu_checkpointing": Effect(
        "saved activations on the host: less memory, slower"
    ),
    "activation_checkpointing.contiguous_memory_optimization": Effect(
        "saved activations in one buffer: less fragmentation"
    ),
    "activation_checkpointing.synchronize_checkpoint_boundary": Effect(
        "the host waits at each unit of recompute: slower"
    ),
    "optimizer.type": Effect(
        "an optimizer with other states and kernels",
        ("Adam", "AdamW", "adam", "adamw", "FusedAdam", "DeepSpeedCPUAdam"),
    ),
    "optimizer.params.torch_adam": Effect("one kernel per parameter: slower"),
    "communication_data_type": Effect("gradients are reduced in this data type"),
    "seq_parallel_communication_data_type": Effect("all-to-alls in this data type"),
    "fp16.auto_cast": Effect("inputs are cast to fp16"),
    "amp.enabled": Effect("NVIDIA's apex casts between data types"),
    "sparse_gradients": Effect("gradients of the embedding as lists of rows"),
    "sparse_attention.mode": Effect("attention between some blocks only: less work"),
    "progressive_layer_drop.enabled": Effect("some layers are skipped in some iterations: faster"),
    "curriculum_learning.enabled": Effect("the first iterations have shorter sequences: faster"),
    "data_efficiency.enabled": Effect("iterations have fewer or shorter tokens: faster"),
    "compression_training.weight_quantization.shared_parameters.enabled": Effect(
        "simulated quantization of weights"
    ),
    "flops_profiler.enabled": Effect("one profiled iteration is slower"),
    "wall_clock_breakdown": Effect("timers that synchronize the GPU: slower"),
    "comms_logger.enabled": Effect("each collective is timed: slower"),
    "elasticity.enabled": Effect("the batch depends on the number of GPUs"),
    "hybrid_engine.enabled": Effect("generation between iterations"),
    "eigenvalue.enabled": Effect("eigenvalues are computed between iterations"),
    "compile.enabled": Effect("compiled kernels: faster"),
    "pipeline.activation_checkpoint_interval": Effect("units of recompute in the pipeline", ("0",)),
}

_WITHOUT_EFFECT = """
    steps_per_print gradient_clipping prescale_gradients gradient_predivide_factor dump_state
    memory_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    checkpoint_parallel_write_pipeline disable_allgather dataloader_drop_last use_node_local_storage
    fp16.loss_scale fp16.loss_scale_window fp16.initial_scale_power fp16.hysteresis
    fp16.min_loss_scale fp16.consecutive_hysteresis fp16.fp16_master_weights_and_grads
    fp16.opt_level bf16.loss_scale bf16.initial_scale_power bf16.loss_scale_window
    bf16.immediate_grad_update bf16.check_grad_overflow
    graph_harvesting optimizer.legacy_fusion
    activation_checkpointing.number_checkpoints activation_checkpointing.profile
"""
_OF_ZERO = """
    load_from_fp32_weights elastic_checkpoint sub_group_size cpu_offload_use_pin_memory
    offload_optimizer offload_optimizer.pin_memory offload_optimizer.buffer_count
    offload_optimizer.fast_init offload_optimizer.pipeline_read offload_optimizer.pipeline_write
    offload_optimizer.pipeline offload_param offload_param.pin_memory offload_param.nvme_path
    offload_param.buffer_count offload_param.buffer_size offload_param.max_in_cpu
    use_multi_rank_bucket_allreduce ignore_unused_parameters memory_efficient_linear
    override_module_apply pipeline_loading_checkpoint stage3_module_granularity_threshold
    stage3_gather_fp16_weights_on_model_save stage3_gather_16bit_weights_on_model_save
    zero_quantized_nontrainable_weights zeropp_loco_param log_trace_cache_warnings
"""
WITHOUT_EFFECT = frozenset(
    (*_WITHOUT_EFFECT.split(), *(f"{_ZERO}.{name}" for name in _OF_ZERO.split()))
)

_SECTIONS_WITHOUT_EFFECT = (
    "scheduler tensorboard wandb csv_monitor comet monitor_config aio checkpoint autotuning nebula "
    "data_types optimizer timers"
)
_SECTIONS = dict.fromkeys(_SECTIONS_WITHOUT_EFFECT.split(), "") | {
    "flops_profiler": "flops_profiler.enabled",
    "comms_logger": "comms_logger.enabled",
    "curriculum_learning": "curriculum_learning.enabled",
    "data_efficiency": "data_efficiency.enabled",
    "progressive_layer_drop": "progressive_layer_drop.enabled",
    "compression_training": ("compression_training.weight_quantization.shared_parameters.enabled"),
    "sparse_attention": "sparse_attention.mode",
    "elasticity": "elasticity.enabled",
    "hybrid_engine": "hybrid_engine.enabled",
    "eigenvalue": "eigenvalue.enabled",
    "compile": "compile.enabled",
    "amp": "amp.enabled",
    "tensor_parallel": "tensor_parallel.autotp_size",
    "pipeline": "pipeline.activation_checkpoint_interval",
}

TABLE = Table(
    kind="key",
    source="DeepSpeed's config",
    mapped=MAPPED,
    not_modelled=NOT_MODELLED,
    without_effect=WITHOUT_EFFECT,
    sections=_SECTIONS,
)
