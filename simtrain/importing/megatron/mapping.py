"""Import the arguments of Megatron-LM.

Defaults follow Megatron-LM's arguments.py and transformer_config.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from simtrain.errors import InputError, Problem
from simtrain.importing.deepspeed.config import Config
from simtrain.importing.deepspeed.draft import over
from simtrain.importing.deepspeed.script import config_of
from simtrain.importing.draft import Draft
from simtrain.importing.megatron.draft import MegatronDraft
from simtrain.importing.megatron.experts import set_expert_parallelism
from simtrain.importing.megatron.kernels import (
    set_attention_backend,
    set_cross_entropy,
    set_software,
    set_workspaces,
)
from simtrain.importing.megatron.memory import set_memory
from simtrain.importing.megatron.model import set_model, set_vocabulary
from simtrain.importing.megatron.offload import set_offload
from simtrain.importing.megatron.overlap import set_overlap
from simtrain.importing.megatron.parallelism import (
    set_batch,
    set_parallelism,
    set_replicas,
    set_stages,
)
from simtrain.importing.megatron.precision import set_precision
from simtrain.importing.megatron.recompute import set_norms, set_recompute
from simtrain.importing.megatron.source import Source, read_source
from simtrain.scenario import Scenario


def import_megatron(
    text_or_file: str,
    overrides: Iterable[str] = (),
    *,
    ignore_unknown: bool = False,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[Scenario, str]:
    """Import Megatron-LM's arguments; return the scenario and the text of its file.

    Args:
        text_or_file: the arguments, or the path of an argument file, a shell script or a log.
        overrides: fields to set, such as "cluster=h100_sxm".
        ignore_unknown: whether to leave out arguments that simtrain does not know. The first lines
            of the file list them.
        gpus: the number of GPUs, if the source does not say it or says another one.
        env: values of variables that a script does not have.

    Raises:
        InputError: unreadable sources, unknown arguments, and values and combinations that
            Megatron-LM refuses; all of them that do not depend on each other.
    """
    return megatron_draft(
        text_or_file, overrides, ignore_unknown=ignore_unknown, gpus=gpus, env=env
    ).finished()


def megatron_draft(
    text_or_file: str,
    overrides: Iterable[str] = (),
    *,
    ignore_unknown: bool = False,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    deepspeed: tuple[str, Config] | None = None,
) -> Draft:
    """Return the draft of a scenario from arguments, and from the JSON of DeepSpeed that they name.

    Arguments and errors are those of `import_megatron`; `deepspeed` is the file and the keys of
    another JSON.
    """
    source = read_source(text_or_file, env)
    draft = draft_of(source, overrides, ignore_unknown=ignore_unknown, gpus=gpus)
    name = "deepspeed_config"
    setting = draft.given(name) if draft.is_deepspeed else None
    if setting and deepspeed is None:
        deepspeed = config_of(setting, draft.file, draft.documents)
        if deepspeed is None:
            text = "the file is not beside the script: its keys, such as offload, are not read"
            draft.note(setting, text)
    if deepspeed is None:
        return draft
    return over(draft, *deepspeed, has_arguments=True, ignore_unknown=ignore_unknown)


def draft_of(
    source: Source,
    overrides: Iterable[str] = (),
    *,
    ignore_unknown: bool = False,
    gpus: int | None = None,
) -> MegatronDraft:
    """Set the fields that the arguments of a source decide, and note what is not modelled.

    Arguments and errors are those of `megatron_draft`.
    """
    combinations = list[Problem]()
    while True:
        draft = MegatronDraft(source, tuple(overrides), ignore_unknown)
        try:
            _set_sections(draft, gpus)
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


def _set_sections(draft: MegatronDraft, gpus: int | None) -> None:
    """Set all sections of a scenario."""
    draft.use_gpus(gpus, draft.tensor * draft.pipeline * draft.context)
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
