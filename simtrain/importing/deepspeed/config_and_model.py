"""Import DeepSpeed's JSON with the model of a config.json or of a script.

Defaults follow DeepSpeed's runtime/config.py, runtime/engine.py and runtime/zero/config.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simtrain.base.file_kinds import text_of_kind
from simtrain.base.importer import ImportRequest
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError
from simtrain.importing.deepspeed.config import Config, read_config
from simtrain.importing.deepspeed.draft import no_model, over
from simtrain.importing.deepspeed.trainer import trainer_draft
from simtrain.importing.draft import Draft
from simtrain.importing.hugging_face.model_config import hugging_face_draft
from simtrain.importing.importers import DeepSpeed, HuggingFace, Megatron
from simtrain.importing.megatron.scenario_draft import megatron_draft

_MOST_SCRIPTS = 200
"""Files of a folder in which a model is looked for."""
_SUFFIXES = ".sh", ".slurm", ".sbatch", ".bash"


def deepspeed_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario with the fields that a config, and its model, decide.

    Without a model in the request, one is looked for beside the source.

    Raises:
        InputError: unreadable files, no model, unknown keys, and values and combinations that
            DeepSpeed refuses.
    """
    source, model = request.file, str(request.model)
    text = text_of_kind(Path(source), *DeepSpeed.kinds, *Megatron.kinds)
    if not DeepSpeed.kinds[0].sign_in(text) and not text.lstrip().startswith("{"):
        return _draft_of_script(request)
    config = read_config(source)
    of_model = replace(request, source=model or _model_beside(Path(source)), model="")
    if _is_config(Path(of_model.file)):
        return over(hugging_face_draft(of_model), source, config)
    return _draft_of_script(of_model, (source, config))


def _draft_of_script(request: ImportRequest, config: tuple[str, Config] | None = None) -> Draft:
    """Return the draft of a script: of Megatron-DeepSpeed, or of transformers' Trainer."""
    return trainer_draft(request, config) or megatron_draft(request, config)


def _is_config(path: Path) -> bool:
    return HuggingFace.kinds[0].sign_in(read_text(path)) is not None


def _model_beside(path: Path) -> str:
    """Return the script that names a JSON file, or the config.json, in the folder of the file."""
    scripts = []
    for file in sorted(path.parent.iterdir())[:_MOST_SCRIPTS]:
        if file.suffix in _SUFFIXES and file.is_file():
            try:
                text = read_text(file)
            except InputError:
                continue
            if path.name in text and DeepSpeed.kinds[1].sign_in(text):
                scripts.append(file)
    config = path.with_name("config.json")
    if not scripts and config != path and config.is_file():
        return str(config)
    if len(scripts) != 1:
        raise no_model(str(path))
    return str(scripts[0])
