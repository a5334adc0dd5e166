"""Import Megatron-LM's arguments of kernels and CUDA graphs."""

from __future__ import annotations

import re
from typing import get_args

from simtrain.importing.megatron.draft import MegatronDraft
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
