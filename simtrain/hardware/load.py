"""Reads a hardware profile, with a scenario's own values laid over its entries."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from simtrain.errors import InputError, Location, Problem, did_you_mean
from simtrain.hardware.profile import HardwareProfile
from simtrain.resources import find_profile
from simtrain.scenario import Scenario
from simtrain.strict_yaml import Document, Path, Positions, load_document, parse_document, validate
from simtrain.strict_yaml.document import dotted

_OVERRIDDEN = "set in the scenario"
# Profiles that this process was given, by name or path.
_given: dict[str, Document] = {}


def profile_of(scenario: Scenario) -> HardwareProfile:
    """The profile of a scenario's cluster, with the scenario's own values laid over it.

    Raises:
        InputError: as `load_profile` does.
    """
    location = scenario.positions.of_value(("cluster",))
    return load_profile(scenario.cluster, scenario.hardware_document, location)


def give_profile(name_or_path: str, text: str) -> None:
    """Have a name or path stand for this profile from now on, whatever file this machine has there.

    Raises:
        InputError: the text cannot be read.
    """
    _given[name_or_path] = parse_document(text, name_or_path)


def load_profile(
    name_or_path: str | pathlib.Path,
    overrides: Document | None = None,
    location: Location | None = None,
) -> HardwareProfile:
    """The profile of a name or path, each entry named in `overrides` set to its value there.

    Overrides are nested like the profile and give values only: `intra_node: {bandwidth: 450 GB/s}`.

    Raises:
        InputError: the file or a value in it is bad, or an override names no entry.
    """
    document = _given.get(str(name_or_path))
    if document is None:
        document = _document(*_version(find_profile(name_or_path, location)))
    if overrides is not None:
        document = _with_overrides(document, overrides)
    return validate(HardwareProfile, document.data, document.positions)


def profile_version(name_or_path: str) -> object:
    """What is different once a profile has changed: its file's identity, size, and time.

    Raises:
        InputError: there is no such profile.
    """
    return (
        id(_given[name_or_path]) if name_or_path in _given else _version(find_profile(name_or_path))
    )


def _version(path: pathlib.Path) -> tuple[pathlib.Path, int, int, int]:
    try:
        about = path.stat()
    except OSError:
        return path, 0, 0, 0  # Why it cannot be read is for the reader to say.
    return path, about.st_ino, about.st_mtime_ns, about.st_size


@functools.lru_cache(maxsize=16)
def _document(path: pathlib.Path, inode: int, modified_ns: int, num_bytes: int) -> Document:
    """A profile's document, read once for as long as its file stays as it is."""
    return load_document(path)


def _with_overrides(profile: Document, overrides: Document) -> Document:
    keys, values = dict(profile.positions.keys), dict(profile.positions.values)

    def lay(under: Any, over: Any, path: Path) -> Any:
        if _is_entry(under):
            _move(path, overrides.positions.keys, keys)
            _move(path, overrides.positions.values, values)
            return {"value": over, "source": _OVERRIDDEN}
        if not isinstance(under, dict) or not isinstance(over, dict):
            raise InputError([_no_entry(path, under, overrides.positions.of_value(path))])
        unknown = [name for name in over if name not in under]
        if unknown:
            where = (*path, unknown[0])
            raise InputError([_no_entry(where, under, overrides.positions.of_key(where))])
        return under | {name: lay(under[name], over[name], (*path, name)) for name in over}

    return Document(lay(profile.data, overrides.data, ()), Positions(keys, values))


def _move(entry: Path, source: Mapping[Path, Location], target: dict[Path, Location]) -> None:
    """What `source` knows of an overridden entry, and of all in it, is known of its value."""
    depth = len(entry)
    for where in [where for where in target if where[:depth] == entry]:
        del target[where]
    target.update(
        {
            (*entry, "value", *where[depth:]): at
            for where, at in source.items()
            if where[:depth] == entry
        }
    )


def _is_entry(data: Any) -> bool:
    return isinstance(data, dict) and "value" in data and "source" in data


def _no_entry(path: Path, around: Any, location: Location | None) -> Problem:
    names = list(around) if isinstance(around, dict) else []
    question = did_you_mean(str(path[-1]), names)
    return Problem(
        "E205",
        f"hardware.{dotted(path)} names no entry of the profile",
        location,
        reason="a scenario can set the profile's entries, those with a value and a source",
        fix=f"{question}entries and sections here: {', '.join(names) or 'none'}",
    )
