"""Import Megatron-LM's arguments of userbuffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.importing.megatron_arguments import USERBUFFERS

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping


def set_userbuffers(mapping: _Mapping) -> None:
    """Set userbuffers, and note their arguments that are not modelled."""
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
    """Return why the userbuffers of a source are not modelled; "" if they are."""
    model, precision = mapping.draft.data["model"], mapping.draft.data["precision"]
    implementation = mapping.known("transformer_impl")
    if implementation and implementation.value == "local":
        return "no effect with --transformer-impl local"
    if "latent_attention" in model or "mtp_num_layers" in model:
        return "pipelines some products with their collectives: faster"
    if precision.get("fp8_recipe", "delayed") not in ("delayed", "tensorwise"):
        return "pipelines fp8 products of this recipe with their collectives: faster"
    return ""
