"""Rules of deferred weight gradients of the output layer (overlap.deferred_output_gradients).

Source: Megatron-Core's `ModelParallelConfig.__post_init__` for defer_embedding_wgrad_compute, and
`finish_embedding_wgrad_compute` in pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from simtrain.scenario.rule import Rules, at_least, requires

_FIELD = "overlap.deferred_output_gradients"
_TOY = "parallelism: {pipeline: 4}\noverlap: {deferred_output_gradients: 2}\n"

DEFERRED_RULES = Rules()
DEFERRED_RULES += [
    requires(
        "E497",
        _FIELD,
        needs={
            "parallelism.pipeline": at_least(2),
            "schedule": ("1f1b", "interleaved"),
            "software.fused_gradient_accumulation": True,
        },
        why="Megatron-Core defers the weight gradients to the end of its own pipeline schedules, "
        "and adds the products to the gradient themselves",
        example="overlap: {deferred_output_gradients: 2}",
    ),
    requires(
        "E400",
        _FIELD,
        needs={
            "memory.zero_stage": (0, 1),
            "overlap.merged_passes": False,
            "model.lora": None,
            "model.mtp_num_layers": 0,
            "offload.unit": "none",
        },
        why="deferred weight gradients of the output layer are not simulated with sharded "
        "gradients, merged passes, adapters, token prediction or copies to "
        "the host",
        example=_TOY + "model: {tied_embeddings: false, lora: {rank: 16}}",
    ),
]
