"""Import Megatron-LM's arguments of kernels and CUDA graphs."""

from __future__ import annotations

from simtrain.importing.megatron.arguments import MAPPED
from simtrain.importing.megatron.draft import MegatronDraft

_BACKENDS = {
    "auto": "fused",
    "flash": "fused",
    "fused": "fused",
    "unfused": "unfused",
    "local": "unfused",
}
_GRAPHS = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")


def set_attention_backend(draft: MegatronDraft) -> None:
    """Set whether attention is fused."""
    names = "attention_backend", "use_flash_attn", "transformer_impl"
    backend = _BACKENDS[draft.choice("attention_backend", _BACKENDS, "auto")]
    if draft.is_local and not draft.given("attention_backend"):
        backend = "fused" if draft.flag("use_flash_attn") else "unfused"
    otherwise = "default of Megatron-LM: auto, a fused kernel"
    draft.set("attention_backend", backend, *names, otherwise=otherwise)


def set_software(draft: MegatronDraft) -> None:
    """Set the software stack, and the entries that arguments change and that have an effect."""
    draft.set_because("software.stack", "megatron_core", "the framework of the source")
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
    for name, has_effect in matters.items():
        if has_effect and not draft.flag(name, True):
            draft.set(MAPPED[name], False, name)
    draft.copy_flags("cross_entropy_loss_fusion")
    # With --cuda-graph-scope, recomputed kernels run outside of CUDA graphs.
    if draft.data["recompute"]["strategy"] != "none" and draft.given("cuda_graph_scope"):
        return
    for name in _GRAPHS:
        found = draft.known(name)
        if found and found.value not in ("none", "False"):
            draft.set("software.cuda_graphs", True, name)
