"""Find the JSON of DeepSpeed that a script names: in a here-document, or beside the script."""

from __future__ import annotations

from pathlib import Path

from simtrain.base.file_kinds import MOST_BYTES_OF_LOG
from simtrain.base.input_file import read_text
from simtrain.errors import InputError
from simtrain.importing.deepspeed.config import Config, parse_config, read_config
from simtrain.importing.megatron.source import unknown_value
from simtrain.importing.settings import Setting
from simtrain.importing.shell.values import Argument


def config_of(
    setting: Setting, script: str, documents: dict[str, Argument]
) -> tuple[str, Config] | None:
    """Return the file and the config that an argument names; None if its file is not there.

    Args:
        setting: the argument, such as --deepspeed_config.
        script: path of the script.
        documents: the files that the script writes.

    Raises:
        InputError: the config cannot be read, or has a value that the script does not define.
    """
    document = documents.get(setting.value)
    if document is None:
        if setting.unknown:
            return None
        path = Path(script).parent / setting.value
        return (str(path), read_config(str(path))) if path.is_file() else None
    place = setting.place
    if document.unknown:
        message = f"the text of {setting.value} has {document.unknown}"
        raise InputError([unknown_value(message, document, place)])
    text = read_text(Path(script), MOST_BYTES_OF_LOG)
    line = text.count("\n", 0, document.offset) + 1
    return script, parse_config(document.text, script, line)
