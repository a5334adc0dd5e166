"""What Megatron-LM's arguments say about data parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping


def set_overlap(mapping: _Mapping) -> None:
    """Set how gradients are reduced and parameters gathered beside compute.

    Buckets and alignment are set only where they change something: Megatron-LM reads neither
    without --overlap-grad-reduce, and aligns nothing on a single stage.
    """
    reduces = mapping.flag("overlap_grad_reduce")
    mapping.set("overlap.data_parallel", reduces, "overlap_grad_reduce")
    data = mapping.draft.data
    if not reduces or data["parallelism"]["data"] == 1:
        return
    gathers = data["memory"]["zero_stage"] == 1 and mapping.flag("overlap_param_gather")
    if gathers:
        mapping.set("overlap.parameter_gather", True, "overlap_param_gather")
    buckets = mapping.integer("ddp_bucket_size") or "megatron"
    mapping.set("overlap.gradient_buckets", buckets, "ddp_bucket_size")
    if mapping.pipeline > 1:
        aligns = mapping.flag("align_grad_reduce", True)
        mapping.set("overlap.align_gradient_reduction", aligns, "align_grad_reduce")
    if gathers and "interleave" in data["parallelism"] and mapping.flag("align_param_gather"):
        mapping.set("overlap.align_parameter_gather", True, "align_param_gather")
