"""Settings of an imported source, and the effects of settings that are not modelled."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from simtrain.base.strict_yaml import as_scalar, leaves
from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location, Problem, did_you_mean

MAX_NAMES = 40
"""The most unknown settings that an error or a file names."""
_SUGGESTED = 10
"""The most unknown settings for which an error suggests a name; each takes milliseconds."""
_MAX_NAME = 100
"""The characters of a name that are compared with other names, which takes their square."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the source: an argument, or a key with its value.

    Args:
        name: its name in the importer's tables.
        spelled: its name in the source, such as --bf16.
        value: its value; of an argument, the text.
        place: position in the source.
        unknown: what its value depends on and the source does not contain, such as "$1".
        reason: why it is unknown, such as "which line 12 sets in a loop".
        variable: the variable that decides its value, if the value is unknown, or "".
    """

    name: str
    spelled: str
    value: Any
    place: Location | None
    unknown: str | None = None
    reason: str = ""
    variable: str = ""

    @property
    def words(self) -> str:
        """The setting in the source, such as --tensor-model-parallel-size 8."""
        is_flag = self.spelled.startswith("--") and self.value in ("True", "False")
        return self.spelled if is_flag else f"{self.spelled} {as_scalar(self.value)}"


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a setting that is not modelled.

    Args:
        text: the effect, in words.
        neutral: values without effect, in addition to None, [], and False (unless True is neutral).
        active: if not empty, the only values with an effect.
        details: names of settings that refine this one and have no effect without it, separated
            by blanks.
        is_large: whether time or memory of a measured run with it cannot be compared with a
            prediction.
    """

    text: str
    neutral: tuple[str, ...] = ()
    details: str = ""
    active: tuple[str, ...] = ()
    is_large: bool = False

    def applies(self, value: Any) -> bool:
        """Whether the setting has an effect with this value."""
        if self.active:
            return str(value) in self.active
        off = () if "True" in self.neutral else ("False",)
        return str(value) not in (*self.neutral, *off, "None", "[]", "")


def unknown_settings(
    settings: Sequence[Setting], kind: str, source: str, known: Collection[str]
) -> Problem:
    """Return the problem of settings that are in none of an importer's tables.

    Args:
        settings: the settings, in the order of the source.
        kind: "argument" or "key".
        source: what they are settings of, such as "Megatron-LM".
        known: the known names, to suggest similar ones.
    """
    names = [setting.spelled for setting in settings]
    likely = {name: did_you_mean(name[:_MAX_NAME], sorted(known)) for name in names[:_SUGGESTED]}
    message, question = f"{names[0]} is not a known {kind} of {source}", likely[names[0]]
    if len(names) > 1:
        lines = (setting.place.line if setting.place else None for setting in settings)
        pairs = [*zip(names, lines, strict=True)][:MAX_NAMES]
        listed = ", ".join(f"{name} (line {line})" if line else name for name, line in pairs)
        more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
        message = f"{len(names):,} unknown {kind}s of {source}: {listed}{more}"
        question = "".join(f"{name}: {text}" for name, text in likely.items() if text)
    return Problem(
        "E871",
        message,
        settings[0].place,
        reason="an ignored setting could change the time or the memory",
        fix=f"{question}Correct the spelling, or add --ignore-unknown (ignore_unknown=True in "
        "Python) to import without what simtrain does not know",
    )


_HEADER = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.-]+)\s*=")


def toml_settings(text: str, file: str) -> dict[str, Setting]:
    """Return the keys of a TOML file as `section.key`, with their values and positions.

    Raises:
        InputError: the text is no TOML (E875), or is nested too deeply (E879).
    """
    try:
        keys = {".".join(map(str, path)): value for path, value in leaves(tomllib.loads(text))}
        if any(isinstance(value, int) and abs(value) >> 63 for value in keys.values()):
            raise ValueError
    except RecursionError:
        message, fix = "its values are nested too deeply", "remove the nesting"
        raise InputError.of("E879", message, Location(file), fix) from None
    except tomllib.TOMLDecodeError as error:
        message, fix = f"invalid TOML: {error}", "correct the TOML syntax"
        raise InputError.of("E875", message, Location(file), fix) from None
    except ValueError:
        message, fix = "a number has more than 64 bits", "write a smaller one"
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
