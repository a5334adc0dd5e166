"""Fields of a scenario that a sweep can vary, looked up by name."""

from __future__ import annotations

import difflib
import functools
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

from simtrain.base.strict_yaml import Path
from simtrain.base.strict_yaml.document import dotted
from simtrain.base.strict_yaml.validation import legal_keys
from simtrain.errors import InputError, Location
from simtrain.scenario import Scenario
from simtrain.scenario.schema import STACK_DEFAULTS

# Pseudo-field: the name of the point's base scenario.
BASE: Path = ("base",)
# Overrides of profile entries; the profile validates them.
_HARDWARE = "hardware"
DERIVED = ("num_gpus", "num_microbatches")
"""What a scenario has beside its fields, for constraints."""
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


@functools.cache
def attributes_by_name() -> Mapping[str, str]:
    """Map each name that a constraint may use to the scenario attribute that it reads.

    A field can be named without its section; the first section that has the field wins
    (`num_layers` is `model.num_layers`, `pipeline` is `parallelism.pipeline`). `recompute` reads
    the strategy, as in scenario files.
    """
    names: dict[str, str] = {"recompute": "recompute.strategy"}
    sections = {path[0] for path in field_paths() if len(path) > 1}
    for path in field_paths():
        if path == (_HARDWARE,) or (len(path) == 1 and path[0] in sections):
            continue
        name = dotted(path)
        default = STACK_DEFAULTS.get(name)
        # The attribute of batch.global is global_, because global is a keyword of Python.
        parts = (f"{key}_" if keyword.iskeyword(str(key)) else str(key) for key in path)
        names[name] = default.resolved if default else ".".join(parts)
        names.setdefault(str(path[-1]), names[name])
    return names | {name: name for name in DERIVED}


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
