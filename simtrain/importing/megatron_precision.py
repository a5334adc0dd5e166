"""Import Megatron-LM's arguments of data types."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping

_RECIPES = {name: name for name in ("delayed", "tensorwise", "blockwise", "mxfp8")}
_STATES = {"exp_avg_dtype": "precision.exp_avg", "exp_avg_sq_dtype": "precision.exp_avg_sq"}


def set_precision(mapping: _Mapping) -> None:
    """Set the dtypes of products, gradients, weights and optimizer states."""
    bf16, fp16, fp8 = mapping.flag("bf16"), mapping.flag("fp16"), mapping.given("fp8")
    if fp8:
        mapping.set("precision.compute", "fp8", "fp8")
        otherwise = "default of Megatron-LM"
        recipe = mapping.choice("fp8_recipe", _RECIPES, "delayed")
        mapping.set("precision.fp8_recipe", recipe, "fp8_recipe", otherwise=otherwise)
    elif bf16 or fp16:
        name = "bf16" if bf16 else "fp16"
        mapping.set("precision.compute", name, name)
    else:
        mapping.draft.set("precision.compute", "fp32", "neither --bf16 nor --fp16")
        mapping.draft.set(
            "attention_backend", "unfused", "fused kernels support only 16-bit numbers"
        )
    names = ("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16")
    gradients = "fp16" if fp16 and not mapping.flag(names[0]) else "fp32"
    if bf16 and mapping.flag("grad_reduce_in_bf16"):
        gradients = "bf16"
    trained = "--fp16" if fp16 else "--bf16" if bf16 else "fp32"
    otherwise = f"default of Megatron-LM with {trained}"
    mapping.set("precision.gradients", gradients, *names, otherwise=otherwise)
    keeps_fp8 = _set_weights(mapping) if fp8 else False
    if mapping.draft.data["memory"]["zero_stage"] == 1:
        _set_narrow_states(mapping, is_bf16=bf16, keeps_fp8=keeps_fp8)


def _set_weights(mapping: _Mapping) -> bool:
    """Set whether the distributed optimizer or Megatron-FSDP keeps weights in fp8; return it."""
    given = mapping.given("fp8_param_gather") or mapping.given("fp8_param")
    keeps = mapping.flag("fp8_param_gather") or mapping.flag("fp8_param")
    data = mapping.draft.data
    if given is None or not keeps or data["memory"]["zero_stage"] not in (1, 3):
        return False
    if data["precision"]["fp8_recipe"] == "mxfp8" or mapping.flag("use_torch_fsdp2"):
        text = "weights gathered and kept in fp8: fewer bytes; the scenario has bf16"
        mapping.draft.note(given.words, text, given.place)
        return False
    mapping.set("precision.fp8_parameters", True, "fp8_param_gather", "fp8_param")
    return True


def _set_narrow_states(mapping: _Mapping, *, is_bf16: bool, keeps_fp8: bool) -> None:
    """Set the dtypes of the precision-aware optimizer (with the distributed optimizer only)."""
    if not mapping.flag("use_precision_aware_optimizer") or mapping.flag("optimizer_cpu_offload"):
        return
    for name, field in _STATES.items():
        argument = mapping.known(name)
        if argument is None or argument.value.rpartition(".")[2] in ("fp32", "float32"):
            continue
        if argument.value.rpartition(".")[2] in ("bf16", "bfloat16"):
            mapping.set(field, "bf16", name)
        else:
            text = "narrower optimizer states: less memory; the scenario has fp32"
            mapping.draft.note(argument.words, text, argument.place)
    main = mapping.known("main_params_dtype")
    if main and main.value.rpartition(".")[2] not in ("fp32", "float32"):
        text = "narrower main parameters: less memory; the scenario has fp32"
        mapping.draft.note(main.words, text, main.place)
    elif is_bf16 and not keeps_fp8:
        names = "main_params_dtype", "use_precision_aware_optimizer"
        mapping.set("precision.main_parameters", "remainder", *names)
        mapping.draft.append("precision.main_parameters", "store_param_remainders is the default")
