"""Keys of a torchtitan job, as `section.key`: mapped, without effect, or not modelled.

Source: torchtitan/config/job_config.py and models/*/__init__.py of pytorch/torchtitan (2025).
"""

from __future__ import annotations

from simtrain.importing.settings import Effect
from simtrain.importing.table import Table, Word, as_they_are
from simtrain.scenario.dispatchers import DEFAULT, DISPATCHERS
from simtrain.schedules import NAMED, default_name

SCHEDULES = {
    torch_name: name for name, family in NAMED.items() for torch_name in family.torch_names
}
"""Our names of PyTorch's pipeline schedules, by lower-case name."""

FILE_SCHEDULES = {
    "pipelineschedulesingle": default_name(1),
    "pipelineschedulemulti": default_name(2),
    "_pipelinescheduleruntime": default_name(2),
}
"""For other schedules that a job with a schedule's file may name, one with as many chunks."""

_COMM_BACKENDS = {
    dispatcher.torchtitan: name for name, dispatcher in DISPATCHERS.items() if dispatcher.torchtitan
}
_ROTATE_METHODS = {"allgather": "all_gather", "alltoall": "p2p"}
"""Our names of the rotate methods; alltoall passes keys and values to the next rank."""

MAPPED: dict[str, Word] = {
    "model.name": Word("model", "llama3"),
    "model.flavor": Word("model", "debugmodel"),
    "training.local_batch_size": Word("batch.micro", 8),
    "training.batch_size": Word("batch.micro"),
    "training.global_batch_size": Word("batch.global", -1),
    "training.seq_len": Word("model.seq_length", 2048),
    "training.mixed_precision_param": Word("precision.compute", "bfloat16"),
    "model.converters": Word("precision.compute", []),
    "model_spec.num_mtp_layers": Word("model.mtp_num_layers", 0),
    "parallelism.data_parallel_replicate_degree": Word("parallelism.data", 1),
    "parallelism.data_parallel_shard_degree": Word("memory.zero_stage", -1),
    "parallelism.fsdp_reshard_after_forward": Word(
        "memory.reshard_after_forward", "default", as_they_are("default", "always", "never")
    ),
    "parallelism.tensor_parallel_degree": Word("parallelism.tensor", 1),
    "parallelism.enable_sequence_parallel": Word("parallelism.sequence_parallel", True),
    "parallelism.enable_async_tensor_parallel": Word("overlap.tensor_parallel", False),
    "parallelism.pipeline_parallel_degree": Word("parallelism.pipeline", 1),
    "parallelism.pipeline_parallel_schedule": Word("schedule", "1F1B"),
    "parallelism.pipeline_parallel_schedule_csv": Word("schedule", ""),
    "parallelism.pipeline_parallel_layers_per_stage": Word("parallelism.interleave"),
    "parallelism.pipeline_parallel_microbatch_size": Word("batch.micro", 1),
    "parallelism.pipeline_parallel_first_stage_less_layers": Word(
        "parallelism.first_stage_layers", 1
    ),
    "parallelism.pipeline_parallel_last_stage_less_layers": Word(
        "parallelism.last_stage_layers", 1
    ),
    "parallelism.pipeline_parallel_split_points": Word("parallelism.layout", []),
    "parallelism.module_fqns_per_model_part": Word("parallelism.layout", []),
    "parallelism.expert_parallel_degree": Word("parallelism.expert", 1),
    "parallelism.expert_tensor_parallel_degree": Word("parallelism.expert_tensor", 1),
    "parallelism.expert_parallel_comm_backend": Word(
        "parallelism.expert_dispatch", DEFAULT.torchtitan, _COMM_BACKENDS
    ),
    "parallelism.context_parallel_degree": Word("parallelism.context", 1),
    "parallelism.context_parallel_rotate_method": Word(
        "parallelism.context_communication", "allgather", _ROTATE_METHODS
    ),
    "training.compile": Word("software"),
    "compile.enable": Word("software"),
    "compile.components": Word("software", ["model", "loss"]),
    "training.disable_cuda_graphs": Word("software.cuda_graphs", False),
    "activation_checkpoint.mode": Word(
        "recompute.strategy", "selective", as_they_are("none", "full", "selective")
    ),
    "activation_checkpoint.selective_ac_option": Word("recompute.num_layers", "2"),
}
"""The keys that set fields."""

NOT_MODELLED: dict[str, Effect] = {
    "optimizer.name": Effect("an optimizer with other states", ("AdamW", "Adam")),
    "optimizer.implementation": Effect("one kernel per parameter: slower", ("fused", "foreach")),
    "optimizer.optimizer_factory_kwargs_by_name": Effect("an optimizer with other states"),
    "optimizer.param_groups": Effect("groups of parameters with an optimizer of their own"),
    "optimizer.early_step_in_backward": Effect(
        "optimizer steps during the backward pass, which frees gradients: less memory", ("False",)
    ),
    "training.enable_cpu_offload": Effect(
        "parameters, gradients and optimizer states on the host", ("False",)
    ),
    "parallelism.disable_loss_parallel": Effect(
        "a gather of the logits before the loss", ("False",)
    ),
    "parallelism.enable_compiled_autograd": Effect("a compiled backward pass", ("False",)),
    "parallelism.enable_fsdp_symm_mem": Effect(
        "collectives of FSDP in symmetric memory: faster", ("False",)
    ),
    "loss": Effect(
        "the loss in chunks of the sequence: less memory",
        active=("ChunkedLossWrapper", "ChunkedCELoss"),
    ),
    "model_spec.attn_backend": Effect(
        "another kernel of attention", ("sdpa",), "model_spec.attn_mask_type"
    ),
    "model_spec.moe_comm_backend": Effect(
        "other all-to-alls of the tokens of experts: faster",
        ("standard",),
        "model_spec.non_blocking_capacity_factor",
    ),
    "model_spec.tp_gemm_backend": Effect("collectives inside of products: faster", ("default",)),
    "enable_fused_swiglu": Effect("one kernel for the activation: faster"),
    "fault_tolerance.enable": Effect("replicas join and leave during training", ("False",)),
    "validation.enabled": Effect("forward passes between iterations", ("False",)),
    "validation.enable": Effect("forward passes between iterations", ("False",)),
    "validator.enable": Effect("forward passes between iterations", ("False",)),
}

FLOAT8_CONVERTERS = ("float8", "quantize.linear.float8")
"""Names of the converter to torchao's float8, and of its section."""

_SECTIONS_WITHOUT_EFFECT = (
    "job profiling profiler metrics lr_scheduler checkpoint comm memory_estimation experimental "
    "debug dataloader tokenizer"
)
_WITHOUT_EFFECT = """
    model.tokenizer_path model.print_after_conversion model.hf_assets_path model.norm_type
    optimizer.lr optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.weight_decay
    training.dataset training.dataset_path training.max_norm training.steps training.gc_freq
    training.gc_debug training.seed training.deterministic training.mixed_precision_reduce
    training.warmup_steps training.dtype training.uses_cuda_graphs
    compile.backend hf_assets_path dump_folder
    parallelism.spmd_backend parallelism.full_dtensor parallelism.context_parallel_load_balancer
    parallelism.context_parallel_ptrr_mask_key
    activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns
    activation_checkpoint.early_stop activation_checkpoint.memory_budget
    activation_checkpoint.force_recompute_mm_shapes_by_fqns
    activation_checkpoint.visualize_memory_budget_pareto activation_checkpoint.preserve_rng_state
    activation_checkpoint.determinism_check activation_checkpoint.debug
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())

TABLE = Table(
    kind="key",
    source="a torchtitan job",
    mapped=MAPPED,
    not_modelled=NOT_MODELLED,
    without_effect=WITHOUT_EFFECT,
    details={
        detail: name for name, effect in NOT_MODELLED.items() for detail in effect.details.split()
    },
    sections=dict.fromkeys(_SECTIONS_WITHOUT_EFFECT.split(), "")
    | {
        "float8": "model.converters",
        "mx": "model.converters",
        "quantize": "model.converters",
        "fault_tolerance": "fault_tolerance.enable",
        "validation": "validation.enabled",
        "validator": "validator.enable",
    },
)
