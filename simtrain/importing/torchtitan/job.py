"""Read the values of a torchtitan job (a TOML file or a config in Python), with their lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from simtrain.base.file_kinds import text_of_kind
from simtrain.base.importer import ImportRequest
from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import InputError, Location
from simtrain.importing.draft import Draft
from simtrain.importing.importers import TORCHTITAN_PYTHON, Torchtitan
from simtrain.importing.settings import Setting, toml_settings
from simtrain.importing.torchtitan.flavors import MISSING, model_of_flavor, refuse_flavor
from simtrain.importing.torchtitan.keys import TABLE
from simtrain.importing.torchtitan.python_job import python_settings


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
        if not self.settings.keys() & TABLE.mapped.keys():
            raise Torchtitan().no_sign(request)

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
    if file.endswith(".py") or TORCHTITAN_PYTHON.sign_in(text):
        return python_settings(text, file, config or None)
    if config:
        message = f"--config is {config}, but the file has one config"
        raise InputError.of("E875", message, Location(file), "remove --config")
    return toml_settings(text, file)
