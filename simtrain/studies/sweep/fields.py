"""Fields of a scenario that a sweep can vary, looked up by name."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from typing import Any

from simtrain.base.strict_yaml import Path
from simtrain.base.strict_yaml.document import dotted
from simtrain.base.strict_yaml.model_fields import legal_keys
from simtrain.errors import InputError, Location
from simtrain.scenario import Scenario

# Pseudo-field: the name of the point's base scenario.
BASE: Path = ("base",)
# Overrides of profile entries; the profile validates them.
_HARDWARE = "hardware"
_WITHOUT_EFFECT = {"name", "description"}

Assignment = tuple[Path, Any]


@functools.cache
def field_paths() -> tuple[Path, ...]:
    """All sections and fields of a scenario that affect the simulation."""
    sections = [key for key in legal_keys(Scenario, ()) if key not in _WITHOUT_EFFECT]
    paths: list[Path] = [(section,) for section in sections]
    for path in paths:
        paths.extend((*path, key) for key in legal_keys(Scenario, path))
    return tuple(paths)


def field_path(name: str, location: Location | None) -> Path:
    """Find the path of a field (else E802) by its dotted name, or of an entry below `hardware`."""
    path: Path = tuple(name.split("."))
    is_entry = path[0] == _HARDWARE and len(path) > 1 and all(path)
    if is_entry or path == BASE or path in field_paths():
        return path
    similar = nearest_field(name)
    question = f"did you mean {similar}? " if similar else ""
    sections = ", ".join(str(path[0]) for path in field_paths() if len(path) == 1)
    message = f'"{name}" is not a field of a scenario'
    fix = (
        f"{question}An axis is a field such as parallelism.tensor (sections: {sections}), or any "
        "other name with labels that each set several fields"
    )
    raise InputError.of("E802", message, location, fix)


def nearest_field(name: str) -> str | None:
    """Return the field closest in spelling to `name`, with or without its section."""
    names = [dotted(path) for path in (BASE, *field_paths())]
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(names)}
    last = name.rpartition(".")[2]
    if last in by_last_part:
        return by_last_part[last]
    if similar := difflib.get_close_matches(name, names, n=1):
        return similar[0]
    parts = difflib.get_close_matches(last, by_last_part, n=1)
    return by_last_part[parts[0]] if parts else None


def base_of(settings: Sequence[Assignment], default: str) -> str:
    """Return the base that settings set, or the default."""
    return next((value for path, value in settings if path == BASE), default)
