"""Read DeepSpeed's JSON, from a file or from a here-document of a script."""

from __future__ import annotations

from pathlib import Path

from simtrain.base.file_kinds import MOST_BYTES_OF_LOG, load_kind
from simtrain.base.input_file import read_text
from simtrain.base.strict_yaml import YamlDocument, leaves, parse_document
from simtrain.errors import InputError, Location
from simtrain.importing.importers import DeepSpeed
from simtrain.importing.megatron.source import unknown_value
from simtrain.importing.settings import Setting
from simtrain.importing.shell.values import Argument

Config = dict[str, Setting]
"""The keys of a config as `section.key`, each with its value and place."""


def read_config(file: str) -> Config:
    """Read the config in a file.

    Raises:
        InputError: the file is of another kind, or cannot be read.
    """
    return _config(load_kind(Path(file), *DeepSpeed.kinds))


def parse_config(text: str, file: str, line: int) -> Config:
    """Parse the config that a script writes.

    Args:
        text: the config.
        file: the script.
        line: its first line in the script.

    Raises:
        InputError: it is no JSON (E106).
    """
    # Empty lines before the text give errors and comments the lines of the script.
    document = parse_document("\n" * (line - 1) + text, file)
    return _config(document)


def _config(document: YamlDocument) -> Config:
    settings = {}
    for path, value in leaves(document.data):
        name = ".".join(map(str, path))
        place = document.positions.of_value(path)
        settings[name] = Setting(name, name, value, place)
    return settings


def count_of(setting: Setting, least: int = 1) -> int:
    """Return a whole number; JSON files also write it as 5e8.

    Raises:
        InputError: the value is no such number (E872).
    """
    value = setting.value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and value == value // 1 and value >= least:
        return int(value)
    raise wrong(setting, f"must be a whole number of at least {least}", f"write {least} or more")


def flag_of(setting: Setting) -> bool:
    """Return true or false.

    Raises:
        InputError: the value is neither (E872).
    """
    if type(setting.value) is bool:
        return setting.value
    raise wrong(setting, "must be true or false", "write true or false")


def wrong(setting: Setting, what: str, fix: str) -> InputError:
    """Return the error about the value of a key."""
    return InputError.of("E872", f"{setting.words}: it {what}", setting.place or Location(""), fix)


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
