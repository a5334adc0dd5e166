"""What Megatron-LM's arguments say about products pipelined with their collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.importing.megatron_arguments import USERBUFFERS

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping


def set_userbuffers(mapping: _Mapping) -> None:
    """Set whether products are pipelined, and note what of it is not modelled."""
    if not mapping.flag("tp_comm_overlap"):
        return
    if text := _not_simulated(mapping):
        argument = mapping.source.arguments["tp_comm_overlap"]
        mapping.draft.note(argument.words, text, argument.place)
        return
    mapping.set("overlap.userbuffers", True, "tp_comm_overlap")
    for name, effect in USERBUFFERS.items():
        if (detail := mapping.given(name)) and effect.applies(detail.value):
            mapping.draft.note(detail.words, effect.text, detail.place)


def _not_simulated(mapping: _Mapping) -> str:
    """Why the pipelining of a source is not simulated, if it is not."""
    model, precision = mapping.draft.data["model"], mapping.draft.data["precision"]
    implementation = mapping.known("transformer_impl")
    if implementation and implementation.value == "local":
        return "the layers of --transformer-impl local do not read it"
    if "latent_attention" in model or "mtp_num_layers" in model:
        return "some products are pipelined with their collectives: faster"
    if precision.get("fp8_recipe", "delayed") not in ("delayed", "tensorwise"):
        return "products in fp8 by this recipe, pipelined with their collectives: faster"
    return ""
