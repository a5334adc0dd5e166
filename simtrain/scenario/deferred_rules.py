"""Rules of deferred weight gradients of the output layer (overlap.deferred_output_gradients).

Source: Megatron-Core's `ModelParallelConfig.__post_init__` for defer_embedding_wgrad_compute, and
`finish_embedding_wgrad_compute` in pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from simtrain.scenario.allowed_values import at_least, one_of
from simtrain.scenario.requirement import Requires
from simtrain.scenario.stage_rules import numbers_of_stages
from simtrain.scenario.violation import LEFT_OUT, Rule

_FIELD = "overlap.deferred_output_gradients"
_TOY = "parallelism: {pipeline: 4}\noverlap: {deferred_output_gradients: 2}\n"

DEFERRED_RULES: list[Rule] = [
    Requires(
        "E497",
        _FIELD,
        needs={
            "parallelism.pipeline": at_least(2, numbers_of_stages),
            "schedule": one_of("1f1b", "interleaved", near=("1f1b",)),
            "software.fused_gradient_accumulation": True,
        },
        why=(
            "Megatron-Core defers the weight gradients to the end of its own pipeline schedules, "
            "and adds the products to the gradient themselves"
        ),
        example="overlap: {deferred_output_gradients: 2}",
    ),
    Requires(
        "E400",
        _FIELD,
        needs={
            "memory.zero_stage": one_of(0, 1, near=(1, 0)),
            "overlap.merged_passes": False,
            "model.lora": one_of(None, near=()),
            "model.mtp_num_layers": one_of(0, near=()),
            "offload.unit": one_of("none", near=(LEFT_OUT,)),
        },
        why=(
            "deferred weight gradients of the output layer are not simulated with sharded "
            "gradients, merged passes, adapters, token prediction or copies to "
            "the host"
        ),
        example=_TOY + "model: {tied_embeddings: false, lora: {rank: 16}}",
    ),
]
