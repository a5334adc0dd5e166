"""Import DeepSpeed's JSON with the model of a config.json or of a script.

Defaults follow DeepSpeed's runtime/config.py, runtime/engine.py and runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from simtrain.base.file_kinds import text_of_kind
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError
from simtrain.importing.deepspeed.config import Config, read_config
from simtrain.importing.deepspeed.draft import no_model, over
from simtrain.importing.deepspeed.trainer import trainer_draft
from simtrain.importing.draft import Draft
from simtrain.importing.hugging_face.mapping import hugging_face_draft
from simtrain.importing.importers.deepspeed import DeepSpeed
from simtrain.importing.importers.hugging_face import HuggingFace
from simtrain.importing.importers.megatron import Megatron
from simtrain.importing.megatron.mapping import megatron_draft
from simtrain.scenario import Scenario

_MOST_SCRIPTS = 200
"""Files of a folder in which a model is looked for."""
_SUFFIXES = ".sh", ".slurm", ".sbatch", ".bash"


def import_deepspeed(
    source: str,
    overrides: Iterable[str] = (),
    *,
    ignore_unknown: bool = False,
    gpus: int | None = None,
    model: str = "",
) -> tuple[Scenario, str]:
    """Import DeepSpeed's JSON; return the scenario and the text of its file.

    Arguments and errors are those of `deepspeed_draft`.
    """
    return deepspeed_draft(
        source, model, overrides, ignore_unknown=ignore_unknown, gpus=gpus
    ).finished()


def deepspeed_draft(
    source: str,
    model: str = "",
    overrides: Iterable[str] = (),
    *,
    ignore_unknown: bool = False,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Draft:
    """Return the draft of a scenario with the fields that a config, and its model, decide.

    Args:
        source: path of DeepSpeed's JSON, or of a script that passes one.
        model: path of a model's config.json or of a script; "" looks for one beside the source.
        overrides: fields to set, such as "batch.global=256".
        ignore_unknown: whether to leave out what simtrain does not know. The first lines of the
            file list it.
        gpus: the number of GPUs.
        env: values of variables that a script does not have.

    Raises:
        InputError: unreadable files, no model, unknown keys, and values and combinations that
            DeepSpeed refuses.
    """
    overrides = tuple(overrides)
    text = text_of_kind(Path(source), *DeepSpeed.kinds, *Megatron.kinds)
    if not DeepSpeed.kinds[0].sign_in(text) and not text.lstrip().startswith("{"):
        return _draft_of_script(source, None, model, overrides, ignore_unknown, gpus, env)
    config = read_config(source)
    model = model or _model_beside(Path(source))
    if _is_config(Path(model)):
        base = hugging_face_draft(model, overrides, ignore_unknown=ignore_unknown, gpus=gpus)
        return over(base, source, config, ignore_unknown=ignore_unknown)
    config_of = source, config
    return _draft_of_script(model, config_of, "", overrides, ignore_unknown, gpus, env)


def _draft_of_script(
    script: str,
    config: tuple[str, Config] | None,
    model: str,
    overrides: tuple[str, ...],
    ignore_unknown: bool,
    gpus: int | None,
    env: Mapping[str, str] | None,
) -> Draft:
    """Return the draft of a script: of Megatron-DeepSpeed, or of transformers' Trainer."""
    if draft := trainer_draft(script, config, model, overrides, ignore_unknown, gpus, env):
        return draft
    return megatron_draft(
        script, overrides, ignore_unknown=ignore_unknown, gpus=gpus, env=env, deepspeed=config
    )


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
