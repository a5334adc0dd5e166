"""Import Megatron-LM's arguments of data parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping

_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""The sharding strategies of Megatron-FSDP, with the ZeRO stages that shard the same states."""
_FSDP = ("use_megatron_fsdp", "use_custom_fsdp")
_NO_PIPELINE = "ZeRO stages 2 and 3 in a pipeline are not modelled: the scenario has stage 1"


def set_memory(mapping: _Mapping, data: int) -> None:
    """Set the ZeRO stage, and the number of replicas that shard states."""
    stage, names = _stage(mapping)
    if stage and data == 1:
        comment = f"{mapping.origin(*names)} has no effect with one replica"
        mapping.draft.set("memory.zero_stage", 0, comment)
    elif stage > 1 and mapping.pipeline > 1:
        mapping.draft.note(mapping.origin(*names), _NO_PIPELINE, mapping.place(*names))
        mapping.set("memory.zero_stage", 1, *names)
    else:
        mapping.set("memory.zero_stage", stage, *names)
    instances = mapping.integer("num_distributed_optimizer_instances") or 1
    if instances > 1 and mapping.draft.data["memory"]["zero_stage"]:
        name = "num_distributed_optimizer_instances"
        mapping.set("memory.shard_over", data // instances, name)
        mapping.draft.append("memory.shard_over", f"{data} replicas / {instances}")
    if stage == 3 and data > 1 and not mapping.flag("torch_fsdp2_reshard_after_forward", True):
        name = "torch_fsdp2_reshard_after_forward"
        mapping.set("memory.reshard_after_forward", False, name)
    if mapping.flag("optimizer_cpu_offload"):
        mapping.set("memory.offload_optimizer", True, "optimizer_cpu_offload")


def _stage(mapping: _Mapping) -> tuple[int, tuple[str, ...]]:
    """Return the ZeRO stage, and the arguments that set it."""
    if mapping.flag("use_torch_fsdp2"):
        return 3, ("use_torch_fsdp2",)
    if any(map(mapping.flag, _FSDP)):
        name = "data_parallel_sharding_strategy"
        strategies = {one: one for one in _STRATEGIES}
        return _STRATEGIES[mapping.choice(name, strategies, "no_shard")], (*_FSDP, name)
    return int(mapping.flag("use_distributed_optimizer")), ("use_distributed_optimizer",)


def set_overlap(mapping: _Mapping) -> None:
    """Set the overlap of gradient reduction and parameter gather with compute.

    Buckets and alignment are set only if they have an effect: Megatron-LM ignores both without
    --overlap-grad-reduce, and aligns nothing on a single stage. Megatron-FSDP and PyTorch's FSDP2
    always overlap the collectives of sharded gradients and parameters.
    """
    data = mapping.draft.data
    stage = data["memory"]["zero_stage"]
    if stage > 1:
        _, names = _stage(mapping)
        mapping.set("overlap.data_parallel", True, *names)
        return
    reduces = mapping.flag("overlap_grad_reduce")
    mapping.set("overlap.data_parallel", reduces, "overlap_grad_reduce")
    if not reduces or data["parallelism"]["data"] == 1:
        return
    gathers = stage == 1 and mapping.flag("overlap_param_gather")
    if gathers:
        mapping.set("overlap.parameter_gather", True, "overlap_param_gather")
    buckets = mapping.integer("ddp_bucket_size") or "megatron"
    mapping.set("overlap.gradient_buckets", buckets, "ddp_bucket_size")
    if mapping.pipeline > 1:
        aligns = mapping.flag("align_grad_reduce", True)
        mapping.set("overlap.align_gradient_reduction", aligns, "align_grad_reduce")
    if gathers and "interleave" in data["parallelism"] and mapping.flag("align_param_gather"):
        mapping.set("overlap.align_parameter_gather", True, "align_param_gather")
