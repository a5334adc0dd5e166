"""Import Megatron-LM's arguments of kernels and CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping

_GRAPHS = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")


def set_software(mapping: _Mapping) -> None:
    """Set the software stack, and the entries that arguments change and that have an effect.

    Reads the model and the attention backend of the draft.
    """
    draft = mapping.draft
    draft.set("software.stack", "megatron_core", "the framework of the source")
    model = draft.data["model"]
    is_gated, biases = model["activation"] == "swiglu", model["biases"]
    adds = biases or model["hidden_dropout"] > 0
    switches = (
        ("masked_softmax_fusion", "softmax", draft.data["attention_backend"] == "unfused"),
        ("apply_rope_fusion", "rotary", model["position_embedding"] == "rope"),
        ("bias_swiglu_fusion", "activation", is_gated),
        ("bias_gelu_fusion", "activation", model["activation"] == "gelu" and biases),
        ("bias_dropout_fusion", "dropout_add", adds),
        ("gradient_accumulation_fusion", "gradient_accumulation", True),
    )
    for argument, entry, matters in switches:
        if matters and not mapping.flag(argument, True):
            mapping.set(f"software.fused_{entry}", False, argument)
    if mapping.flag("cross_entropy_loss_fusion"):
        mapping.set("software.fused_cross_entropy", True, "cross_entropy_loss_fusion")
    # With --cuda-graph-scope, recomputed kernels run outside of CUDA graphs.
    recomputes = draft.data["recompute"]["strategy"] != "none"
    if recomputes and mapping.given("cuda_graph_scope"):
        return
    for argument in _GRAPHS:
        found = mapping.known(argument)
        if found and found.value not in ("none", "False"):
            mapping.set("software.cuda_graphs", True, argument)
