"""Import Megatron-LM's arguments of activations that wait on the host."""

from __future__ import annotations

from simtrain.importing.megatron.draft import MegatronDraft, listed, wrong
from simtrain.scenario.offload_section import OFFLOAD_MODULES

_OF_EXPERTS = {"expert_fc1", "moe_act"}
_FLAG, _LAYERS, _MODULES = (
    "fine_grained_activation_offloading",
    "cpu_offloading_num_layers",
    "offload_modules",
)


def set_offload(draft: MegatronDraft) -> None:
    """Set the layers or the modules whose saved tensors are copied to the host."""
    flag = draft.given(_FLAG)
    is_fine = flag is not None and draft.flag(_FLAG)
    if layers := draft.integer(_LAYERS):
        if is_fine:
            raise wrong(draft.settings[_LAYERS], f"cannot be combined with {_FLAG}")
        draft.set("offload.layers", layers, _LAYERS)
    if not is_fine or flag is None:
        return
    argument = draft.known(_MODULES)
    if argument is None:
        raise wrong(flag, f"needs {_MODULES}")
    named = listed(argument)
    if unknown := [name for name in named if name not in OFFLOAD_MODULES]:
        says = (
            f"has {unknown[0]}, which is not modelled; write some of {', '.join(OFFLOAD_MODULES)}"
        )
        raise wrong(argument, says)
    absent = set() if draft.data["model"].get("experts") else _OF_EXPERTS
    modules = [name for name in OFFLOAD_MODULES if name in named and name not in absent]
    if modules:
        draft.set("offload.modules", modules, _MODULES, _FLAG)
    else:
        comment = f"{draft.origin(_MODULES)}: no layer has these modules"
        draft.set_because("offload.unit", "none", comment, draft.place(_MODULES))
