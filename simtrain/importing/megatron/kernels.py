"""Import Megatron-LM's arguments of kernels, precision and overlap."""

from __future__ import annotations

import re
from typing import get_args

from simtrain.importing.megatron.arguments import MAPPED, USERBUFFERS
from simtrain.importing.megatron.draft import MegatronDraft
from simtrain.importing.megatron.memory import zero_stage
from simtrain.scenario.software import (
    DEFAULT_STACK,
    GraphModule,
    Stack,
    load_stack,
    releases_of,
    stack_of_framework,
)

_CORE = 2023
"""Year of Megatron-Core's first release."""
_UNTIL_2022 = ("checkpoint_activations",)
_SINCE_2023 = (
    *("transformer_impl", "use_mcore_models", "attention_backend", "fp8", "swiglu"),
    *("position_embedding_type", "group_query_attention", "context_parallel_size", "normalization"),
    *("use_distributed_optimizer", "tp_comm_overlap", "untie_embeddings_and_output_weights"),
)
"""Arguments that exist only in releases of these years."""
_WHOLE = "full_iteration"
"""Scope of one CUDA graph of all forward and backward passes of an iteration."""
_GRAPHS = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")
_OFF = ("none", "False")
_WORD = re.compile(r"\b[a-z_]+\b")


def set_attention_backend(draft: MegatronDraft) -> None:
    """Set whether attention is fused."""
    names = "attention_backend", "use_flash_attn", "transformer_impl"
    backend = draft.choice("attention_backend")
    if draft.is_deepspeed:
        is_fused = draft.flag("use_flash_attn")
        otherwise = "default of Megatron-DeepSpeed"
        backend = "fused" if is_fused else "unfused"
        draft.set("attention_backend", backend, "use_flash_attn", otherwise=otherwise)
        return
    if draft.is_local and not draft.given("attention_backend"):
        backend = "fused" if draft.flag("use_flash_attn") else "unfused"
    otherwise = "default of Megatron-LM: auto, a fused kernel"
    draft.set("attention_backend", backend, *names, otherwise=otherwise)


def set_software(draft: MegatronDraft) -> None:
    """Set the software stack, and the entries that arguments change and that have an effect."""
    stack, comment = stack_of_framework(draft.tool) or DEFAULT_STACK, "the framework of the source"
    old = next(filter(draft.given, _UNTIL_2022), None)
    if draft.is_deepspeed:
        stack = "deepspeed_2022"
    elif not any(map(draft.given, _SINCE_2023)) and (old or (draft.year or _CORE) < _CORE):
        stack = "megatron_2022"
        comment = draft.origin(old) if old else f"its container image is of {draft.year}"
    draft.set_because("software.stack", stack, comment)
    if blocking := draft.blocking:
        line = f", line {blocking.place.line}" if blocking.place and blocking.place.line else ""
        draft.set_because("software.blocking_launches", True, blocking.name + line, blocking.place)
    model = draft.data["model"]
    biases = model["biases"]
    matters = {
        "masked_softmax_fusion": draft.data["attention_backend"] == "unfused",
        "apply_rope_fusion": model["position_embedding"] == "rope",
        "bias_swiglu_fusion": model["activation"] == "swiglu",
        "bias_gelu_fusion": model["activation"] == "gelu" and biases,
        "bias_dropout_fusion": biases or model["hidden_dropout"] > 0,
        "gradient_accumulation_fusion": True,
    }
    draft.copy(*filter(matters.get, matters))
    facts = load_stack(stack).facts
    if draft.flag("cross_entropy_loss_fusion") or facts["fused_cross_entropy"]:
        draft.fill("cross_entropy_loss_fusion")
    _set_graphs(draft, load_stack(stack))


def _set_graphs(draft: MegatronDraft, stack: Stack) -> None:
    """Set the CUDA graphs: of whole passes, or of parts of layers.

    With --cuda-graph-scope, later named modules, recomputed kernels run outside of CUDA graphs,
    except in a graph of the whole iteration.
    """
    settings = {name: draft.known(name) for name in _GRAPHS}
    names = [name for name, setting in settings.items() if setting and setting.value not in _OFF]
    if not names:
        if releases_of(stack.name):
            draft.set("software.cuda_graphs", False, *_GRAPHS)
        return
    scope = draft.known("cuda_graph_scope") or draft.known("cuda_graph_modules")
    words = _WORD.findall(scope.value) if scope else []
    if scope and words and not {*words} & {_WHOLE, "full"}:
        modules = [word for word in words if word in get_args(GraphModule)]
        if others := [word for word in words if word not in modules]:
            kernels = "the host launches the kernels one by one"
            draft.note(scope, f"CUDA graphs of {', '.join(others)} are not modelled: {kernels}")
        draft.set("software.cuda_graph_modules", modules, scope.name)
        return
    recomputes = draft.data["recompute"]["strategy"] != "none"
    if scope and recomputes and _WHOLE in words and not stack.recompute_in_cuda_graphs.value:
        draft.note(scope, f"CUDA graphs with recompute, which {stack.name} refuses: faster")
        return
    draft.set("software.cuda_graphs", True, *names)


def set_cross_entropy(draft: MegatronDraft) -> None:
    """Set the kernels of a fused loss; Megatron-LM's own are the default."""
    if draft.flag("cross_entropy_loss_fusion"):
        draft.fill("cross_entropy_fusion_impl")


def set_workspaces(draft: MegatronDraft) -> None:
    """Set the workspaces of products that differ from those of the stack.

    PyTorch's deterministic algorithms need a fixed `CUBLAS_WORKSPACE_CONFIG`, of which ":4096:8" is
    the larger and the one that keeps the speed (torch.use_deterministic_algorithms).
    """
    if draft.flag("deterministic_mode"):
        detail = "CUBLAS_WORKSPACE_CONFIG is taken as :4096:8"
        draft.set("software.cublas_workspace", "32 MiB", "deterministic_mode", detail=detail)
    if draft.is_local:
        draft.set("software.linear_workspaces", 0, "transformer_impl")
    if "experts" not in draft.data["model"]:
        return
    legacy = "moe_use_legacy_grouped_gemm"
    if draft.is_local or draft.flag(legacy):
        draft.set("software.expert_workspaces", 0, "transformer_impl", legacy)
    elif not draft.flag("moe_grouped_gemm"):
        comment = "no --moe-grouped-gemm: products of one expert after another"
        draft.set_because("software.expert_workspaces", 0, comment)


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


_MERGED = "overlap_moe_expert_parallel_comm"
_DEFERRED = "defer_embedding_wgrad_compute"


def set_overlap(draft: MegatronDraft) -> None:
    """Set the overlap of pipeline transfers, tensor-parallel and data-parallel collectives.

    Overlapped transfers and alignment are defaults of Megatron-LM, and so of its software stack for
    each layout. A field is set only if an argument turns off what the layout would have; a log also
    prints arguments that validate_args turned off for a layout that cannot have them.
    """
    interleaves = "interleave" in draft.data["parallelism"]
    if interleaves:
        draft.copy("overlap_p2p_comm")
    if draft.flag("tp_comm_overlap"):
        _set_userbuffers(draft)
    if draft.flag(_MERGED):
        _set_merged_passes(draft)
    if draft.flag(_DEFERRED) and draft.pipeline > 1:
        _set_deferred_gradients(draft)
    _set_data_parallel(draft, interleaves)


def _set_userbuffers(draft: MegatronDraft) -> None:
    """Set userbuffers, and note their arguments that are not modelled."""
    if text := _unmodelled_userbuffers(draft):
        draft.note(draft.settings["tp_comm_overlap"], text)
        return
    draft.copy("tp_comm_overlap")
    draft.note_effects(USERBUFFERS)


def _set_merged_passes(draft: MegatronDraft) -> None:
    """Set merged passes, or note them with sharded gradients or full recompute."""
    is_sharded = draft.data["memory"]["zero_stage"] > 1
    if is_sharded or draft.data["recompute"]["strategy"] == "full":
        text = "all-to-alls overlap with another microbatch: faster, but more memory"
        draft.note(draft.settings[_MERGED], text)
        return
    draft.copy(_MERGED, "delay_wgrad_compute")


def _set_deferred_gradients(draft: MegatronDraft) -> None:
    """Set deferred weight gradients of the output layer, of all microbatches without a limit.

    They are noted where the scenario cannot have them (E400).
    """
    data = draft.data
    is_merged = data.get("overlap", {}).get("merged_passes", False)
    has_others = draft.given("peft_dim") or is_merged or "mtp_num_layers" in data["model"]
    copies = data.get("offload", {}).get("unit", "none") != "none"
    if data["memory"]["zero_stage"] > 1 or has_others or copies:
        text = "weight gradients of the output layer run in bubbles of the last stage"
        draft.note(draft.settings[_DEFERRED], text)
        return
    batch, replicas = data["batch"], data["parallelism"]["data"]
    number = draft.integer("wgrad_deferral_limit") or batch["global"] // batch["micro"] // replicas
    draft.set("overlap.deferred_output_gradients", number, _DEFERRED, "wgrad_deferral_limit")


def _unmodelled_userbuffers(draft: MegatronDraft) -> str:
    """Return why the userbuffers of a source are not modelled; "" if they are."""
    model, precision = draft.data["model"], draft.data["precision"]
    if draft.is_local:
        return "no effect with --transformer-impl local"
    if "latent_attention" in model or "mtp_num_layers" in model:
        return "pipelines some products with their collectives: faster"
    is_fp4 = precision["compute"] == "fp4"
    if is_fp4 or precision.get("fp8_recipe", "delayed") not in ("delayed", "tensorwise"):
        return "pipelines products of this recipe with their collectives: faster"
    return ""


def _set_data_parallel(draft: MegatronDraft, interleaves: bool) -> None:
    """Set the overlap of gradient reduction and parameter gather with compute.

    Buckets are set only if they have an effect: Megatron-LM ignores them without
    --overlap-grad-reduce. Megatron-FSDP and PyTorch's FSDP2
    always overlap the collectives of sharded gradients and parameters.
    """
    stage = draft.data["memory"]["zero_stage"]
    if stage > 1:
        _, names = zero_stage(draft)
        draft.set("overlap.data_parallel", True, *names)
        return
    reduces = draft.flag("overlap_grad_reduce")
    draft.set("overlap.data_parallel", reduces, "overlap_grad_reduce")
    if not reduces or draft.data["parallelism"]["data"] * draft.context == 1:
        return
    gathers = stage == 1 and draft.flag("overlap_param_gather")
    stack = load_stack(draft.data["software"]["stack"])
    if gathers or (stage == 1 and stack.facts["overlap_parameter_gather"]):
        draft.fill("overlap_param_gather")
    buckets = draft.integer("ddp_bucket_size") or "megatron"
    draft.set("overlap.gradient_buckets", buckets, "ddp_bucket_size")
    if draft.pipeline > 1:
        draft.copy("align_grad_reduce")
    if gathers and interleaves:
        draft.copy("align_param_gather")
