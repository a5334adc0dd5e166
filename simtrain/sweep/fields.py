"""The fields of a scenario that a sweep can vary, and how a name finds one."""

from __future__ import annotations

import difflib
import functools
from typing import Any

from simtrain.errors import InputError, Location, Problem
from simtrain.scenario import Scenario
from simtrain.strict_yaml import Path
from simtrain.strict_yaml.document import dotted
from simtrain.strict_yaml.model_fields import legal_keys

# Which scenario the point starts from; its value is the name of one.
BASE: Path = ("base",)
# Entries of the cluster's profile: what there is below is for the profile to say.
_HARDWARE = "hardware"
_SAY_NOTHING = {"name", "description"}

Assignment = tuple[Path, Any]


@functools.cache
def field_paths() -> tuple[Path, ...]:
    """All sections and fields of a scenario that change what is simulated."""
    sections = [key for key in legal_keys(Scenario, ()) if key not in _SAY_NOTHING]
    paths: list[Path] = [(section,) for section in sections]
    for path in paths:
        paths.extend((*path, key) for key in legal_keys(Scenario, path))
    return tuple(paths)


def field_path(name: str, location: Location | None) -> Path:
    """The path of the field with this dotted name, or of an entry below `hardware`.

    Raises:
        InputError: no field has this name.
    """
    path: Path = tuple(name.split("."))
    is_entry = path[0] == _HARDWARE and len(path) > 1 and all(path)
    if is_entry or path == BASE or path in field_paths():
        return path
    similar = nearest_field(name)
    question = f"did you mean {similar}? " if similar else ""
    sections = ", ".join(str(path[0]) for path in field_paths() if len(path) == 1)
    message = f'"{name}" names no field of a scenario'
    fix = (
        f"{question}An axis is a field such as parallelism.tensor, of the sections {sections}; "
        "or a name of your own with labels that each set several fields"
    )
    raise InputError([Problem("E802", message, location, fix=fix)])


def nearest_field(name: str) -> str | None:
    """The field that is written most like `name`, in full or by its last part alone."""
    names = [dotted(path) for path in (BASE, *field_paths())]
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(names)}
    last = name.rpartition(".")[2]
    if last in by_last_part:
        return by_last_part[last]
    if similar := difflib.get_close_matches(name, names, n=1):
        return similar[0]
    parts = difflib.get_close_matches(last, by_last_part, n=1)
    return by_last_part[parts[0]] if parts else None


def leaves(path: Path, value: Any) -> tuple[Assignment, ...]:
    """The assignments that a value stands for: a section sets each field that it holds."""
    if not isinstance(value, dict):
        return ((path, value),)
    return tuple(leaf for key, inner in value.items() for leaf in leaves((*path, key), inner))
