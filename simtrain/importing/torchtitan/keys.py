"""Keys of a torchtitan job, as `section.key`: mapped, without effect, or not modelled.

Source: torchtitan/config/job_config.py and models/*/__init__.py of pytorch/torchtitan (2025).
"""

from __future__ import annotations

from simtrain.importing.settings import Effect
from simtrain.importing.table import Table, Word, as_they_are
from simtrain.scenario.dispatchers import DEFAULT, DISPATCHERS
from simtrain.schedules import NAMED, default_name

MODELS = {
    ("llama3", "8B"): "llama3_8b",
    ("llama3", "70B"): "llama3_70b",
    ("llama3", "405B"): "llama3_405b",
    ("qwen3", "8B"): "qwen3_8b",
    ("qwen3", "32B"): "qwen3_32b",
    ("qwen3", "30B-A3B"): "qwen3_30b_a3b",
    ("qwen3", "235B-A22B"): "qwen3_235b_a22b",
    ("deepseek_v3", "671B"): "deepseek_v3",
}
"""The scenario with the model of a name and a flavor."""

SCHEDULES = {
    torch_name: name for name, family in NAMED.items() for torch_name in family.torch_names
}
"""Our names of PyTorch's pipeline schedules, by lower-case name."""

FILE_SCHEDULES = {
    "pipelineschedulesingle": default_name(1),
    "pipelineschedulemulti": default_name(2),
    "_pipelinescheduleruntime": default_name(2),
    "interleavedzerobubble": default_name(2),
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
    "parallelism.data_parallel_replicate_degree": Word("parallelism.data", 1),
    "parallelism.data_parallel_shard_degree": Word("memory.zero_stage", -1),
    "parallelism.fsdp_reshard_after_forward": Word(
        "memory.reshard_after_forward", "default", as_they_are("default", "always", "never")
    ),
    "parallelism.tensor_parallel_degree": Word("parallelism.tensor", 1),
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
    "activation_checkpoint.mode": Word(
        "recompute.strategy", "selective", as_they_are("none", "full", "selective")
    ),
    "activation_checkpoint.selective_ac_option": Word("recompute.num_layers", "2"),
}
"""The keys that set fields."""

NOT_MODELLED: dict[str, Effect] = {
    "optimizer.name": Effect("an optimizer with other states", ("AdamW", "Adam")),
    "optimizer.implementation": Effect("one kernel per parameter: slower", ("fused", "foreach")),
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
    "fault_tolerance.enable": Effect("replicas join and leave during training", ("False",)),
    "validation.enabled": Effect("forward passes between iterations", ("False",)),
}

FLOAT8_CONVERTERS = ("float8", "quantize.linear.float8")
"""Names of the converter to torchao's float8, and of its section."""

_SECTIONS_WITHOUT_EFFECT = (
    "job profiling metrics lr_scheduler checkpoint comm memory_estimation experimental debug"
)
_WITHOUT_EFFECT = """
    model.tokenizer_path model.print_after_conversion model.hf_assets_path model.norm_type
    optimizer.lr optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.weight_decay
    training.dataset training.dataset_path training.max_norm training.steps training.gc_freq
    training.gc_debug training.seed training.deterministic training.mixed_precision_reduce
    training.warmup_steps training.dtype
    compile.components
    activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns
    activation_checkpoint.early_stop
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())

TABLE = Table(
    kind="key",
    source="a torchtitan job",
    mapped=MAPPED,
    not_modelled=NOT_MODELLED,
    without_effect=WITHOUT_EFFECT,
    sections=dict.fromkeys(_SECTIONS_WITHOUT_EFFECT.split(), "")
    | {
        "float8": "model.converters",
        "mx": "model.converters",
        "quantize": "model.converters",
        "fault_tolerance": "fault_tolerance.enable",
        "validation": "validation.enabled",
    },
)
