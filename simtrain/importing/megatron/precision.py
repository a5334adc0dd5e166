"""Import Megatron-LM's arguments of data types."""

from __future__ import annotations

from simtrain.importing.megatron.arguments import MAPPED
from simtrain.importing.megatron.draft import MegatronDraft
from simtrain.scenario.software import load_stack


def set_precision(draft: MegatronDraft) -> None:
    """Set the dtypes of products, gradients, weights and optimizer states."""
    bf16, fp16, fp8 = draft.flag("bf16"), draft.flag("fp16"), draft.given("fp8")
    fp4 = draft.given("fp4")
    if fp8 and not fp4:
        draft.set("precision.compute", "fp8", "fp8")
        draft.fill("fp8_recipe")
    elif fp4:
        draft.set("precision.compute", draft.choice("fp4_recipe"), "fp4", "fp4_recipe")
    elif bf16 or fp16:
        name = "bf16" if bf16 else "fp16"
        draft.set("precision.compute", name, name)
    else:
        draft.set_because("precision.compute", "fp32", "neither --bf16 nor --fp16")
        comment = "fused kernels support only 16-bit numbers"
        draft.set_because("attention_backend", "unfused", comment)
    if (fp8 or fp4) and draft.flag("first_last_layers_bf16"):
        for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
            draft.set(MAPPED[name].field, draft.value(name), name, "first_last_layers_bf16")
    names = ("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16")
    gradients = "fp16" if fp16 and not draft.flag(names[0]) else "fp32"
    if bf16 and draft.flag(names[1]):
        gradients = "bf16"
    trained = "--fp16" if fp16 else "--bf16" if bf16 else "fp32"
    otherwise = f"default of Megatron-LM with {trained}"
    draft.set("precision.gradients", gradients, *names, otherwise=otherwise)
    keeps_fp8 = _set_weights(draft) if fp8 else False
    if draft.data["memory"]["zero_stage"] == 1:
        _set_narrow_states(draft, keeps_fp32=not bf16 or keeps_fp8)


def _set_weights(draft: MegatronDraft) -> bool:
    """Set whether weights are kept in fp8; return it.

    The distributed optimizer and Megatron-FSDP gather weights that are trained. Frozen ones need
    neither.
    """
    names = "fp8_param_gather", "fp8_param"
    setting = draft.given(names[0]) or draft.given(names[1])
    keeps = setting is not None and any(map(draft.flag, names))
    if draft.given("peft_dim"):
        draft.set("precision.fp8_parameters", keeps, *names, otherwise=f"{names[0]} is off")
        return keeps
    stage, recipe = draft.data["memory"]["zero_stage"], draft.data["precision"]["fp8_recipe"]
    if setting is None or not keeps:
        if recipe in load_stack(draft.data["software"]["stack"]).facts["trained_fp8_recipes"]:
            draft.set("precision.fp8_parameters", False, *names, otherwise=f"{names[0]} is off")
        return False
    if stage not in (1, 3):
        return False
    if (stage == 3 and recipe == "mxfp8") or draft.flag("use_torch_fsdp2"):
        text = "weights gathered and kept in fp8: fewer bytes; the scenario has bf16"
        draft.note(setting, text)
        return False
    draft.set("precision.fp8_parameters", True, *names)
    return True


def _set_narrow_states(draft: MegatronDraft, *, keeps_fp32: bool) -> None:
    """Set the dtypes of the precision-aware optimizer (with the distributed optimizer only).

    Args:
        draft: the import.
        keeps_fp32: whether main parameters are whole fp32 numbers, because weights are not in bf16.
    """
    if not draft.flag("use_precision_aware_optimizer") or draft.flag("optimizer_cpu_offload"):
        return
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        argument = draft.known(name)
        dtype = argument.value.rpartition(".")[2] if argument else "fp32"
        if dtype in ("bf16", "bfloat16"):
            draft.set(MAPPED[name].field, "bf16", name)
        elif argument and dtype not in ("fp32", "float32"):
            draft.note(argument, "narrower optimizer states: less memory; the scenario has fp32")
    main = draft.known("main_params_dtype")
    if main and main.value.rpartition(".")[2] not in ("fp32", "float32"):
        draft.note(main, "narrower main parameters: less memory; the scenario has fp32")
    elif not keeps_fp32:
        names = "main_params_dtype", "use_precision_aware_optimizer"
        detail = "store_param_remainders is the default"
        draft.set("precision.main_parameters", "remainder", *names, detail=detail)
