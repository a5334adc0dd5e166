"""Import Megatron-LM's arguments that shard or offload the states of the model."""

from __future__ import annotations

from simtrain.importing.megatron.draft import MegatronDraft, wrong

_FSDP = ("use_megatron_fsdp", "use_custom_fsdp")
_NO_PIPELINE = "ZeRO stages 2 and 3 in a pipeline are not modelled: the scenario has stage 1"


def set_memory(draft: MegatronDraft) -> None:
    """Set the ZeRO stage, and the number of replicas that shard states."""
    stage, names = zero_stage(draft)
    data = draft.data["parallelism"]["data"]
    name = "num_distributed_optimizer_instances"
    instances = draft.integer(name) or 1
    # Megatron-LM shards over data and context parallel ranks together.
    ranks, rest = divmod(data * draft.context, instances)
    if rest:
        says = f"does not divide {data * draft.context} data x context parallel ranks"
        raise wrong(draft.settings[name], says)
    if stage and ranks == 1:
        where = "one rank in each instance" if instances > 1 else "one replica"
        comment = f"{draft.origin(*names, name)} has no effect with {where}"
        draft.set_because("memory.zero_stage", 0, comment)
    elif stage > 1 and draft.pipeline > 1:
        draft.note(draft.origin(*names), _NO_PIPELINE)
        draft.set("memory.zero_stage", 1, *names)
    else:
        draft.set("memory.zero_stage", stage, *names)
    if instances > 1 and draft.data["memory"]["zero_stage"]:
        if data % instances:
            raise wrong(draft.settings[name], f"does not divide {data} replicas: not modelled")
        detail = f"{data} replicas / {instances}"
        draft.set("memory.shard_over", data // instances, name, detail=detail)
    name = "torch_fsdp2_reshard_after_forward"
    if draft.data["memory"]["zero_stage"] == 3 and not draft.flag(name):
        draft.set("memory.reshard_after_forward", False, name)
    draft.copy("optimizer_cpu_offload")
    if draft.flag("cpu_optimizer"):
        draft.set("memory.offload_optimizer", True, "cpu_optimizer")


def zero_stage(draft: MegatronDraft) -> tuple[int, tuple[str, ...]]:
    """Return the ZeRO stage, and the arguments that set it."""
    if draft.is_deepspeed:
        return draft.integer("zero_stage") or 0, ("zero_stage", "deepspeed")
    if draft.flag("use_torch_fsdp2"):
        return 3, ("use_torch_fsdp2",)
    if any(map(draft.flag, _FSDP)):
        name = "data_parallel_sharding_strategy"
        return draft.choice(name), (*_FSDP, name)
    return int(draft.flag("use_distributed_optimizer")), ("use_distributed_optimizer",)
