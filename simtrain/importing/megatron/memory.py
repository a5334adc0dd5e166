"""Import Megatron-LM's arguments of memory, offload and recompute."""

from __future__ import annotations

from simtrain.importing.megatron.draft import MegatronDraft, listed, wrong
from simtrain.scenario.offload_section import OFFLOAD_MODULES
from simtrain.scenario.recompute_section import DEFAULT_MODULES, MODULES

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


_OF_EXPERTS = {"expert_fc1", "moe_act"}
_FLAG, _LAYERS, _MODULES = (
    "fine_grained_activation_offloading",
    "cpu_offloading_num_layers",
    "offload_modules",
)


def set_offload(draft: MegatronDraft) -> None:
    """Set the layers or the modules whose saved tensors are copied to the host."""
    flag = draft.given(_FLAG)
    is_fine = flag is not None and draft.flag(_FLAG)
    if layers := draft.integer(_LAYERS):
        if is_fine:
            raise wrong(draft.settings[_LAYERS], f"cannot be combined with {_FLAG}")
        draft.set("offload.layers", layers, _LAYERS)
    if not is_fine or flag is None:
        return
    argument = draft.known(_MODULES)
    if argument is None:
        raise wrong(flag, f"needs {_MODULES}")
    named = listed(argument)
    if unknown := [name for name in named if name not in OFFLOAD_MODULES]:
        says = (
            f"has {unknown[0]}, which is not modelled; write some of {', '.join(OFFLOAD_MODULES)}"
        )
        raise wrong(argument, says)
    absent = set() if draft.data["model"].get("experts") else _OF_EXPERTS
    modules = [name for name in OFFLOAD_MODULES if name in named and name not in absent]
    if modules:
        draft.set("offload.modules", modules, _MODULES, _FLAG)
    else:
        comment = f"{draft.origin(_MODULES)}: no layer has these modules"
        draft.set_because("offload.unit", "none", comment, draft.place(_MODULES))


MODULE_NAMES = {"core_attn": "core_attention"} | {
    module: module for module in MODULES if module != "core_attention"
}


def set_recompute(draft: MegatronDraft) -> None:
    """Set the strategy, its modules or units, and the microbatches without recompute."""
    names = ["recompute_granularity", "recompute_activations"]
    default = "selective" if draft.flag("recompute_activations") else "none"
    strategy = draft.choice("recompute_granularity", default)
    if (flag := draft.given("moe_layer_recompute")) and draft.flag("moe_layer_recompute"):
        # transformer_config.py converts this deprecated flag to a module.
        if strategy == "full":
            raise wrong(flag, "cannot be combined with full recompute")
        strategy = "selective"
        names.append("moe_layer_recompute")
    if draft.flag("checkpoint_activations"):
        # Megatron-LM before 2022, and Megatron-DeepSpeed.
        strategy = "full"
        names.append("checkpoint_activations")
    draft.set("recompute.strategy", strategy, *names)
    if strategy == "selective":
        _set_modules(draft)
    if strategy == "full":
        draft.fill("recompute_method", "recompute_num_layers")
        draft.copy("distribute_saved_activations")
    draft.copy("num_microbatches_with_partial_activation_checkpoints")


def _set_modules(draft: MegatronDraft) -> None:
    argument = draft.known("recompute_modules")
    named = listed(argument) if argument else ["core_attn"]
    if argument and (unknown := [name for name in named if name not in MODULE_NAMES]):
        says = f"has {unknown[0]}, which is not modelled; write some of {', '.join(MODULE_NAMES)}"
        raise wrong(argument, says)
    modules = {MODULE_NAMES[name] for name in named}
    if draft.flag("moe_layer_recompute"):
        modules.add("moe")
    ignored = modules & _ignored(draft)
    if draft.given("fp4"):
        unmodelled = (modules - ignored) & {"layernorm", "moe_act"}
        for module in sorted(unmodelled):
            text = "less memory, but inputs are cast twice"
            draft.note(f"--recompute-modules {module} with fp4", text)
        ignored |= unmodelled
    recomputed = [module for module in MODULES if module in modules - ignored]
    names = ("recompute_modules", "moe_layer_recompute")
    if not recomputed:
        comment = f"{draft.origin(*names)}: none of these modules is recomputed"
        draft.set_because("recompute.strategy", "none", comment, draft.place(*names))
    elif recomputed != [*DEFAULT_MODULES]:
        detail = f"not {', '.join(sorted(ignored))}, which no layer has" if ignored else ""
        draft.set("recompute.modules", recomputed, *names, detail=detail)


def _ignored(draft: MegatronDraft) -> set[str]:
    """Return the modules that Megatron-LM accepts, although no layer has them."""
    model = draft.data["model"]
    experts, has_latents = model.get("experts"), "latent_attention" in model
    ignored = set()
    if not experts:
        ignored |= {"moe", "shared_experts"}
    elif "shared_ffn_hidden_size" not in experts:
        ignored.add("shared_experts")
    if experts and not {"first_dense_layers", "layer_frequency"} & experts.keys():
        ignored.add("mlp")
    # Transformer Engine's norms are parts of linear layers, unless several layers read a norm.
    if not (experts or has_latents or draft.is_local):
        ignored.add("layernorm")
    return ignored


def set_norms(draft: MegatronDraft) -> None:
    """Set separate norms if recompute depends on it."""
    depends = set() if "mlp" in _ignored(draft) else {"mlp", "layernorm"}
    if "latent_attention" not in draft.data["model"]:
        depends.add("layernorm")
    if draft.is_local and depends & {*draft.data["recompute"].get("modules", ())}:
        draft.set("software.norm_in_linear", False, "transformer_impl")
