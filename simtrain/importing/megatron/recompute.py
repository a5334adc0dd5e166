"""Import Megatron-LM's arguments of recompute."""

from __future__ import annotations

from simtrain.importing.megatron.draft import MegatronDraft, listed, wrong
from simtrain.scenario.recompute_section import DEFAULT_MODULES, MODULES

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
