"""Read the keys of a TOML file as settings with their positions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

from simtrain.base.strict_yaml import leaves
from simtrain.errors import InputError, Location
from simtrain.importing.settings import Setting

_HEADER = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_DEEP = re.compile(r"(?:\.[^.=\n]{1,100}){60}")
_KEY = re.compile(r"\s*([\w.-]+)\s*=")


def toml_settings(text: str, file: str) -> dict[str, Setting]:
    """Return the keys of a TOML file as `section.key`, with their values and positions.

    Raises:
        InputError: the text is no TOML (E875), or is nested too deeply (E879).
    """
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
