"""Import DeepSpeed's JSON with the model of a config.json or of a script, and scripts of Trainer.

Defaults follow DeepSpeed's runtime/config.py, runtime/engine.py and runtime/zero/config.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simtrain.base.importer import ImportRequest
from simtrain.base.input_file import MOST_BYTES_OF_LOG, text_of_kind
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError
from simtrain.importing.deepspeed.draft import Config, config_of, no_model, over, read_config
from simtrain.importing.draft import Draft
from simtrain.importing.hugging_face.model_config import hugging_face_draft
from simtrain.importing.importers import DeepSpeed, HuggingFace, Megatron
from simtrain.importing.megatron.fields import megatron_draft
from simtrain.importing.megatron.launch import headers_of, launch_of, machine_of, variables_of
from simtrain.importing.megatron.source import unknown_value
from simtrain.importing.settings import Setting
from simtrain.importing.shell.script_reader import Environment, read_script
from simtrain.importing.shell.syntax import Lines
from simtrain.importing.shell.values import Argument
from simtrain.importing.table import WordsFile

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


_TRAINER = WordsFile(Path(__file__).with_name("trainer.toml"))
_ARGUMENTS, _DEFAULTS = _TRAINER.section("arguments"), _TRAINER.section("defaults")
_MODELS, _LENGTHS, _FLAGS = (
    str(_TRAINER.rows[name]).split() for name in ("models", "lengths", "flags")
)
_READ = {*_MODELS, *_LENGTHS, *_FLAGS, *_ARGUMENTS, "deepspeed", "deepspeed_config"}
_YES = "", "true", "1", "yes"


def trainer_draft(request: ImportRequest, config: tuple[str, Config] | None) -> Draft | None:
    """Return the draft of a script of transformers' Trainer; None for other scripts.

    Args:
        request: what is imported; its model is the model's config.json, or "" for the one that the
            script names.
        config: DeepSpeed's JSON, if it is not the one that the script names.

    Raises:
        InputError: the script, the model or the config cannot be read.
    """
    script = request.file
    kinds = DeepSpeed.kinds[1], *Megatron.kinds
    text = text_of_kind(Path(script), *kinds, most_bytes=MOST_BYTES_OF_LOG)
    text = text.replace("\r\n", "\n")
    lines = Lines(text, script)
    headers = headers_of(text, lines)
    environment = Environment(variables_of(headers), request.env or {})
    reader = read_script(text, lines, environment)
    words = next((words for words in reader.commands if _is_trainer(words)), None)
    if words is None:
        return None
    arguments = _arguments(words, lines)
    config = config or _config_of(arguments, script, reader.files)
    launch = launch_of(words, reader.commands, headers, lines)
    model = request.model or _model_of(arguments, script)
    gpus = request.gpus or _product(launch)
    base = hugging_face_draft(replace(request, source=model, gpus=gpus))
    base.machine = machine_of(text, reader.commands, lines)
    length = next((arguments[name] for name in _LENGTHS if name in arguments), None)
    if length and length.value.isdecimal() and int(length.value[:9]) > 0:
        base.set_because("model.seq_length", int(length.value), _said(length), length.place)
    checkpointing = arguments.get("gradient_checkpointing")
    if checkpointing and str(checkpointing.value).lower() in _YES:
        base.set_because("recompute.strategy", "full", _said(checkpointing), checkpointing.place)
    if unread := _unread(words):
        base.note(
            unread, "words of the script itself are not read", lines.location(words[0].offset)
        )
    path, keys = config if config else (script, {})
    return over(base, path, _completed(keys, arguments))


def _is_trainer(words: Sequence[Argument]) -> bool:
    flags = {word.text.partition("=")[0].lstrip("-") for word in words}
    has_script = any(re.search(r"\.py\b", word.text) for word in words)
    return has_script and bool(flags & {*_MODELS}) and bool(flags & {"deepspeed", *_ARGUMENTS})


def _product(launch: Sequence[Setting]) -> int | None:
    """Return the number of ranks of a launch; None if it does not say it."""
    counts = [setting.value for setting in launch if not setting.unknown]
    are_counts = bool(launch) and len(counts) == len(launch) and all(map(str.isdecimal, counts))
    return math.prod(map(int, counts)) or None if are_counts else None


def _arguments(words: Sequence[Argument], lines: Lines) -> dict[str, Setting]:
    """Return the arguments of a command by name; an argument without a value has ""."""
    arguments: dict[str, Setting] = {}
    start = next((at for at, word in enumerate(words) if word.text.endswith(".py")), 0)
    for number, word in enumerate(words):
        before = words[number - 1].text.lstrip("-").partition("=")[0].replace("-", "_")
        is_value = number and words[number - 1].text.startswith("--") and before not in _FLAGS
        if word.may_be_arguments and number > start and not is_value:
            message = f"{word.unknown} is among the arguments"
            effect = "it may be several arguments, or none"
            place = lines.location(word.offset)
            raise InputError([unknown_value(message, word, place, effect=effect)])
        if not word.text.startswith("--"):
            continue
        flag, equals, value = word.text.partition("=")
        following = words[number + 1] if number + 1 < len(words) else None
        source = word
        if not equals and following and not following.text.startswith("--"):
            value, source = following.text, following
        name = flag.lstrip("-").replace("-", "_")
        place = lines.location(word.offset)
        arguments[name] = Setting(name, flag, value, place, source.unknown, source.reason)
    return arguments


def _unread(words: Sequence[Argument]) -> str:
    """Return the words after the script that nothing is read from."""
    start = next((at for at, word in enumerate(words) if word.text.endswith(".py")), 0)
    unread, is_read = list[str](), False
    for word in words[start + 1 :]:
        if word.text.startswith("--"):
            is_read = word.text.lstrip("-").partition("=")[0].replace("-", "_") in _READ
        if not is_read:
            unread.append(word.unknown or word.text)
    return " ".join(unread)


def _config_of(
    arguments: dict[str, Setting], script: str, documents: dict[str, Argument]
) -> tuple[str, Config] | None:
    setting = arguments.get("deepspeed") or arguments.get("deepspeed_config")
    if setting is None or not setting.value:
        return None
    if config := config_of(setting, script, documents):
        return config
    raise InputError.of(
        "E874",
        f"{setting.spelled} is {setting.value}, and there is no such file beside the script",
        setting.place,
        "copy the file there, or: simtrain import FILE.json --model config.json",
    )


def _model_of(arguments: dict[str, Setting], script: str) -> str:
    """Return the config.json of the model that the script names.

    Raises:
        InputError: it is not here (E881).
    """
    folder = Path(script).parent
    setting = next(arguments[name] for name in _MODELS if name in arguments)
    for path in (folder / setting.value / "config.json", folder / "config.json"):
        if not setting.unknown and path.is_file():
            return str(path)
    raise InputError.of(
        "E881",
        f"the config of the model {setting.value} is not here",
        setting.place,
        f"hf download {setting.value} config.json --local-dir . && simtrain import "
        f"{script} --model config.json",
    )


def _completed(config: Config, arguments: dict[str, Setting]) -> Config:
    """Return a config whose "auto" values are those of the trainer's arguments."""
    keys = dict(config)
    for name, key in _ARGUMENTS.items():
        argument = arguments.get(name)
        if key in keys and keys[key].value != "auto":
            continue
        if argument is None:
            if name in _DEFAULTS:
                keys[key] = Setting(key, f"default of --{name}", _DEFAULTS[name], None)
            continue
        value = str(argument.value)
        number = int(value) if value.isdecimal() and len(value) < 10 else None
        is_flag = name in ("bf16", "fp16")
        read = value.lower() in _YES if is_flag else number
        if read is not None and not argument.unknown:
            keys[key] = Setting(key, _said(argument), read, argument.place)
    return keys


def _said(argument: Setting) -> str:
    return f"{argument.spelled} {argument.value}".rstrip()
