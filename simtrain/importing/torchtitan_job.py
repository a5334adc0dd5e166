"""Read the values of a torchtitan job (a TOML file), with their lines."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simtrain.errors import InputError, Location, Problem, did_you_mean
from simtrain.importing.torchtitan_keys import (
    DEFAULTS,
    DETAILS,
    MAPPED,
    NOT_MODELLED,
    WITHOUT_EFFECT,
    WITHOUT_EFFECT_SECTIONS,
)
from simtrain.strict_yaml import as_scalar, read_text

_HEADER = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=")


class Job:
    """A job: its values by `section.key`, with lines and defaults."""

    def __init__(self, file: str) -> None:
        self.file = file
        text = read_text(Path(file))
        try:
            sections = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            fix = "correct the TOML syntax"
            raise InputError.of("E875", f"invalid TOML: {error}", Location(file), fix) from None
        self.values: dict[str, Any] = {}
        for section, keys in sections.items():
            inside = keys.items() if isinstance(keys, dict) else {"": keys}.items()
            self.values |= {f"{section}.{key}".rstrip("."): value for key, value in inside}
        self.places = dict(_places(text, file))
        self._refuse_unknown()

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, or its default."""
        return self.values.get(key, DEFAULTS.get(key))

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

    def place(self, key: str) -> Location:
        """Return the position of a key."""
        return self.places.get(key) or Location(self.file)

    def origin(self, *keys: str) -> str:
        """Return a comment with the keys that are set and their lines."""
        given = [key for key in keys if key in self.values]
        lines = ", ".join(str(self.place(key).line) for key in given)
        return f"{', '.join(given)}, line {lines}" if given else "default of torchtitan"

    def wrong(self, key: str, what: str, fix: str) -> InputError:
        """Return the error about the value of a key."""
        message = f"{key} is {as_scalar(self[key])}: it {what}"
        return InputError.of("E872", message, self.place(key), fix)

    def _refuse_unknown(self) -> None:
        known = {*MAPPED, *NOT_MODELLED, *WITHOUT_EFFECT}
        passed_over = {*WITHOUT_EFFECT_SECTIONS, *DETAILS}
        problems = [
            Problem(
                "E871",
                f"{key} is not a known key of a torchtitan job",
                self.place(key),
                reason="an ignored key could change the time or the memory",
                fix=f"{did_you_mean(key, sorted(known))}Remove it if it affects neither time nor "
                "memory",
            )
            for key in self.values
            if key not in known and key.partition(".")[0] not in passed_over
        ]
        if problems:
            raise InputError(problems)


def _places(text: str, file: str) -> Iterable[tuple[str, Location]]:
    """Yield the position of each key, which tomllib does not return."""
    section = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            section = header[1]
        elif key := _KEY.match(line):
            yield f"{section}.{key[1]}".lstrip("."), Location(file, number, key.start(1) + 1, line)
