"""Import the arguments of Megatron-LM.

Defaults follow Megatron-LM's arguments.py and transformer_config.py.
"""

from __future__ import annotations

from dataclasses import replace

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError, Problem
from simtrain.importing.deepspeed.config import Config, config_of
from simtrain.importing.deepspeed.draft import over
from simtrain.importing.draft import Draft
from simtrain.importing.megatron.draft import MegatronDraft
from simtrain.importing.megatron.experts import set_expert_parallelism
from simtrain.importing.megatron.kernels import (
    set_attention_backend,
    set_cross_entropy,
    set_overlap,
    set_precision,
    set_software,
    set_workspaces,
)
from simtrain.importing.megatron.memory import set_memory, set_norms, set_offload, set_recompute
from simtrain.importing.megatron.model import set_model, set_vocabulary
from simtrain.importing.megatron.parallelism import (
    set_batch,
    set_parallelism,
    set_replicas,
    set_stages,
)
from simtrain.importing.megatron.source import Source, read_source


def megatron_draft(request: ImportRequest, deepspeed: tuple[str, Config] | None = None) -> Draft:
    """Return the draft of a scenario from arguments, and from the JSON of DeepSpeed that they name.

    Args:
        request: what is imported; its source is the arguments, or the path of an argument file, a
            shell script or a log.
        deepspeed: the file and the keys of another JSON.

    Raises:
        InputError: unreadable sources, unknown arguments, and values and combinations that
            Megatron-LM refuses; all of them that do not depend on each other.
    """
    draft = draft_of(read_source(request.file, request.env), request)
    name = "deepspeed_config"
    setting = draft.given(name) if draft.is_deepspeed else None
    if setting and deepspeed is None:
        deepspeed = config_of(setting, draft.file, draft.documents)
        if deepspeed is None:
            text = "the file is not beside the script: its keys, such as offload, are not read"
            draft.note(setting, text)
    if deepspeed is None:
        return draft
    return over(draft, *deepspeed, has_arguments=True)


def draft_of(source: Source, request: ImportRequest) -> MegatronDraft:
    """Set the fields that the arguments of a source decide, and note what is not modelled.

    Errors are those of `megatron_draft`.
    """
    combinations = list[Problem]()
    while True:
        draft = MegatronDraft(source, request)
        try:
            _set_sections(draft)
        except InputError as error:
            # With other problems, it may follow from an argument that was left out.
            if not draft.problems:
                combinations += error.problems
                name = draft.name_at(error.problems[0].location)
                if name:  # the others are read without this argument
                    rest = {**source.arguments}
                    del rest[name]
                    source = replace(source, arguments=rest)
                    continue
        draft.refuse_problems(combinations)
        return draft


def _set_sections(draft: MegatronDraft) -> None:
    """Set all sections of a scenario."""
    draft.use_gpus(draft.tensor * draft.pipeline * draft.context)
    # Later sections read the fields of earlier ones; the file has the sections in this order.
    for set_section in (
        set_model,
        set_vocabulary,
        set_parallelism,
        set_stages,
        set_replicas,
        set_batch,
        set_recompute,
        set_offload,
        set_memory,
        set_attention_backend,
        set_software,
        set_cross_entropy,
        set_workspaces,
        set_norms,
        set_precision,
        set_overlap,
        set_expert_parallelism,
    ):
        set_section(draft)
    effects = {
        name: effect
        for name, effect in draft.table.not_modelled.items()
        if not _is_neutral(draft, name)
    }
    draft.note_effects(effects)


def _is_neutral(draft: MegatronDraft, name: str) -> bool:
    """Whether an argument that is not modelled has no effect on this scenario, with any value."""
    model = draft.data["model"]
    match name:
        case _ if "moe" in name and "experts" not in model:
            return True
        case "spec" if draft.pattern is not None:
            return True
        case "max_position_embeddings":
            length = draft.given(draft.first_given("seq_length"))
            is_learned = model["position_embedding"] == "learned"
            argument = draft.given(name)
            is_equal = length and argument and argument.value == length.value
            return not is_learned or length is None or bool(is_equal)
        case "attention_softmax_in_fp32" | "apply_query_key_layer_scaling":
            return bool(draft.data["attention_backend"] == "fused")
    return False
