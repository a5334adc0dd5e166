"""Import Megatron-LM's arguments of recompute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.importing.megatron_values import listed, wrong
from simtrain.scenario.recompute_section import DEFAULT_MODULES, MODULES

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping

_MODULES = {module: module for module in MODULES} | {"core_attn": "core_attention"}
del _MODULES["core_attention"]
_STRATEGIES = {"full": "full", "selective": "selective", "none": "none"}


def set_recompute(mapping: _Mapping) -> None:
    """Set the strategy, its modules or units, and the microbatches without recompute.

    Reads the model of the draft.
    """
    names = ["recompute_granularity", "recompute_activations"]
    granularity = "selective" if mapping.flag("recompute_activations") else "none"
    strategy = mapping.choice("recompute_granularity", _STRATEGIES, granularity)
    if (flag := mapping.given("moe_layer_recompute")) and mapping.flag("moe_layer_recompute"):
        # transformer_config.py converts this deprecated flag to a module.
        if strategy == "full":
            raise wrong(flag, "cannot be combined with full recompute")
        strategy = "selective"
        names.append("moe_layer_recompute")
    mapping.set("recompute.strategy", strategy, *names)
    if strategy == "selective":
        _set_modules(mapping)
    if strategy == "full":
        methods = {"uniform": "uniform", "block": "block"}
        method = mapping.choice("recompute_method", methods, "uniform")
        mapping.set("recompute.method", method, "recompute_method")
        layers = mapping.integer("recompute_num_layers")
        mapping.set("recompute.num_layers", layers or 1, "recompute_num_layers")
        if mapping.flag("distribute_saved_activations"):
            mapping.set("recompute.distribute", True, "distribute_saved_activations")
    name = "num_microbatches_with_partial_activation_checkpoints"
    if kept := mapping.integer(name):
        mapping.set("recompute.keep_microbatches", kept, name)


def _set_modules(mapping: _Mapping) -> None:
    argument = mapping.known("recompute_modules")
    named = listed(argument) if argument else ["core_attn"]
    if argument and (unknown := [one for one in named if one not in _MODULES]):
        says = f"has {unknown[0]}, which is not modelled; write some of {', '.join(_MODULES)}"
        raise wrong(argument, says)
    modules = {_MODULES[one] for one in named}
    if mapping.flag("moe_layer_recompute"):
        modules.add("moe")
    ignored = modules & _ignored(mapping)
    recipe = mapping.known("fp8_recipe")
    if mapping.given("fp8") and recipe and recipe.value != "delayed":
        unmodelled = (modules - ignored) & {"layernorm", "moe_act"}
        for module in sorted(unmodelled):
            text = "less memory, but inputs are cast to fp8 twice"
            mapping.draft.note(f"--recompute-modules {module} with fp8", text)
        ignored |= unmodelled
    modules -= ignored
    found = [module for module in MODULES if module in modules]
    names, field = ("recompute_modules", "moe_layer_recompute"), "recompute.modules"
    if not found:
        comment = f"{mapping.origin(*names)}: none of these modules is recomputed"
        mapping.draft.set("recompute.strategy", "none", comment, mapping.place(*names))
    elif found != [*DEFAULT_MODULES]:
        mapping.set(field, found, *names)
        if ignored:
            mapping.draft.append(field, f"not {', '.join(sorted(ignored))}, which no layer has")


def _is_local(mapping: _Mapping) -> bool:
    """Whether norms are separate modules, not fused into linear layers."""
    implementation = mapping.known("transformer_impl")
    return implementation is not None and implementation.value == "local"


def _ignored(mapping: _Mapping) -> set[str]:
    """Return the modules that Megatron-LM accepts, although no layer has them."""
    model = mapping.draft.data["model"]
    experts, has_latents = model.get("experts"), "latent_attention" in model
    ignored = set()
    if not experts:
        ignored |= {"moe", "shared_experts"}
    elif "shared_ffn_hidden_size" not in experts:
        ignored.add("shared_experts")
    if experts and not {"first_dense_layers", "layer_frequency"} & experts.keys():
        ignored.add("mlp")
    if not (experts or has_latents or _is_local(mapping)):
        ignored.add("layernorm")
    return ignored


def set_norms(mapping: _Mapping) -> None:
    """Set separate norms if recompute depends on it; reads the draft's model and recompute."""
    model, policy = mapping.draft.data["model"], mapping.draft.data["recompute"]
    depends = set() if "mlp" in _ignored(mapping) else {"mlp", "layernorm"}
    if "latent_attention" not in model:
        depends.add("layernorm")
    if _is_local(mapping) and depends & {*policy.get("modules", ())}:
        mapping.set("software.norm_in_linear", False, "transformer_impl")
