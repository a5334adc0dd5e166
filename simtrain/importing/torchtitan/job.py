"""Read the values of a torchtitan job (a TOML file or a config in Python), with their lines."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from simtrain.base.file_kinds import text_of_kind
from simtrain.base.importer import ImportRequest
from simtrain.base.strict_yaml import as_scalar, leaves
from simtrain.errors import InputError, Location
from simtrain.importing.draft import Draft
from simtrain.importing.importers.torchtitan import PYTHON, Torchtitan
from simtrain.importing.settings import Setting
from simtrain.importing.torchtitan.flavors import MISSING, model_of_flavor, refuse_flavor
from simtrain.importing.torchtitan.keys import TABLE
from simtrain.importing.torchtitan.python_job import python_settings

_HEADER = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_DEEP = re.compile(r"(?:\.[^.=\n]{1,100}){60}")
_KEY = re.compile(r"\s*([\w.-]+)\s*=")


class JobDraft(Draft):
    """A scenario during its import from a job, whose settings are `section.key`."""

    def __init__(self, request: ImportRequest) -> None:
        super().__init__(
            request,
            what=f"torchtitan's job in {request.file}",
            default="default of torchtitan",
            table=TABLE,
            settings=_settings(request.file, request.config),
        )
        name, flavor = (self.settings.get(f"model.{key}") for key in ("name", "flavor"))
        pair = [str(each.value) if each else "" for each in (name, flavor)]
        # Such a model has keys that are unknown too, but its missing part matters more.
        if flavor and pair[0] in MISSING and model_of_flavor(*pair) is None:
            refuse_flavor(pair[0], pair[1], flavor.place)
        self.refuse_unknown()

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, or its default."""
        return self.setting(key).value

    def setting(self, key: str) -> Setting:
        """Return a key with its value or its default.

        Raises:
            InputError: a config in Python does not determine the value.
        """
        word = self.table.mapped.get(key)
        setting = self.given(key)
        if setting is None:
            return Setting(key, key, word.default if word else None, Location(self.file))
        if not setting.unknown:
            return setting
        if word and (value := self.override(word.field)) is not None:
            return replace(setting, value=value, unknown=None)
        raise InputError.of(
            "E874",
            f"{key} depends on {setting.unknown}, {setting.reason}",
            setting.place,
            "write its value in the file" + (f", or add --set {word.field}=..." if word else ""),
        )

    def value(self, key: str) -> Any:
        """Return our value of a key; the default in the table has its type.

        Raises:
            InputError: the value is no count, or not one of the table's.
        """
        word = self.table.mapped[key]
        if word.values:
            return self.choice(key)
        return self.count(key) if type(word.default) is int else self[key]

    def count(self, key: str, *, or_rest: bool = False, least: int = 1) -> int:
        """Return the value of a key: an integer of at least `least`, or -1 if `or_rest`.

        Raises:
            InputError: the value is not such an integer.
        """
        value = self[key]
        if type(value) is int and (value >= least or (or_rest and value == -1)):
            return value
        also, sign = ", or -1" if or_rest else "", "positive" if least else "non-negative"
        raise self.wrong(key, f"must be a {sign} integer{also}", f"write {least} or more{also}")

    def choice(self, key: str, what: str = "is not modelled") -> Any:
        """Return our value for one of the values in the table.

        Raises:
            InputError: the table does not have the value.
        """
        value, values = self[key], self.table.mapped[key].values
        if isinstance(value, str) and value in values:
            return values[value]
        *others, last = values
        raise self.wrong(key, what, f"write {', '.join(others)} or {last}")

    def wrong(self, key: str, what: str, fix: str) -> InputError:
        """Return the error about the value of a key."""
        setting = self.setting(key)
        message = f"{key} is {as_scalar(setting.value)}: it {what}"
        return InputError.of("E872", message, setting.place, fix)


def _settings(file: str, config: str) -> dict[str, Setting]:
    """Return the keys of a job as `section.key`."""
    text = text_of_kind(Path(file), *Torchtitan.kinds)
    if file.endswith(".py") or PYTHON.sign_in(text):
        return python_settings(text, file, config or None)
    if config:
        message = f"--config is {config}, but the file has one config"
        raise InputError.of("E875", message, Location(file), "remove --config")
    return _toml_settings(text, file)


def _toml_settings(text: str, file: str) -> dict[str, Setting]:
    try:
        if _DEEP.search(text):
            raise RecursionError  # tomllib takes the square of a key's sections
        keys = {".".join(map(str, path)): value for path, value in leaves(tomllib.loads(text))}
    except RecursionError:
        message, fix = "its values are nested too deeply", "remove the nesting"
        raise InputError.of("E879", message, Location(file), fix) from None
    except tomllib.TOMLDecodeError as error:
        message, fix = f"invalid TOML: {error}", "correct the TOML syntax"
        raise InputError.of("E875", message, Location(file), fix) from None
    except ValueError:
        message, fix = "a number has more digits than Python converts", "shorten it"
        raise InputError.of("E879", message, Location(file), fix) from None
    places = dict(_places(text, file))
    return {
        key: Setting(key, key, value, places.get(key, Location(file)))
        for key, value in keys.items()
    }


def _places(text: str, file: str) -> Iterable[tuple[str, Location]]:
    """Yield the position of each key, which tomllib does not return."""
    section = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            section = header[1]
        elif key := _KEY.match(line):
            yield f"{section}.{key[1]}".lstrip("."), Location(file, number, key.start(1) + 1, line)
