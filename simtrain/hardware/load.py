"""Load a hardware profile and apply a scenario's overrides."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

from simtrain.base.importer import PROFILE, load_kind
from simtrain.base.resources import find_profile
from simtrain.base.strict_yaml import Path, Positions, YamlDocument, validate
from simtrain.base.strict_yaml.reading import dotted, move_places
from simtrain.errors import InputError, Location, Problem, did_you_mean
from simtrain.hardware.profile import SCALE, SET_IN_SCENARIO, HardwareProfile
from simtrain.hardware.sections import VariationEntries
from simtrain.scenario import Scenario


def profile_of(scenario: Scenario) -> HardwareProfile:
    """Load the profile of a scenario's cluster, with the scenario's overrides applied.

    Raises:
        InputError: as `load_profile` does.
    """
    location = scenario.positions.of_value(("cluster",))
    return load_profile(scenario.cluster, scenario.hardware_document, location)


def load_profile(
    name_or_path: str | pathlib.Path,
    overrides: YamlDocument | None = None,
    location: Location | None = None,
) -> HardwareProfile:
    """Load a profile by name or path and apply overrides.

    Overrides are nested like the profile and give only values: `intra_node: {bandwidth: 450 GB/s}`.
    Their section `scale` has factors of resources: `scale: {network_bandwidth: 2}`.

    Raises:
        InputError: the file or a value in it is bad, or an override names no entry.
    """
    document = _document(*_version(find_profile(name_or_path, location)))
    if overrides is not None:
        document = _with_overrides(document, overrides)
    overridden = overrides.positions if overrides is not None else Positions()
    spell = functools.partial(_spelled, overridden)
    profile = validate(HardwareProfile, document.data, document.positions, spell)
    if overrides is None or SCALE not in overrides.data:
        return profile
    from simtrain.hardware.upgrades import scaled

    return scaled(profile, overrides)


@functools.cache
def stand_in() -> HardwareProfile:
    """Return the shipped profile whose variation and failures stand in for those of others."""
    return load_profile("h100_sxm")


def variation_of(profile: HardwareProfile) -> tuple[str, VariationEntries]:
    """Return the profile whose variation counts, itself or the one that stands in, and its entries.

    Most simulations need no other profile, which takes as long to read as their own.
    """
    if profile.variation is None:
        return variation_of(stand_in())
    return profile.name, profile.variation


def profile_version(scenario: Scenario) -> object:
    """A value that changes with the file of a scenario's profile; None if there is no such file."""
    try:
        return _version(find_profile(scenario.cluster))
    except InputError:
        return None


def _version(path: pathlib.Path) -> tuple[pathlib.Path, int, int, int]:
    try:
        about = path.stat()
    except OSError:
        return path, 0, 0, 0  # Loading the file reports why it cannot be read.
    return path, about.st_ino, about.st_mtime_ns, about.st_size


@functools.lru_cache(maxsize=16)
def _document(path: pathlib.Path, inode: int, modified_ns: int, num_bytes: int) -> YamlDocument:
    return load_kind(path, PROFILE)


def _with_overrides(profile: YamlDocument, overrides: YamlDocument) -> YamlDocument:
    places = dict(profile.positions.places)

    def overridden(under: Any, over: Any, path: Path) -> Any:
        if _is_entry(under):
            move_places(path, overrides.positions.places, places, ("value",))
            return {"value": over, "source": SET_IN_SCENARIO}
        if not isinstance(under, dict) or not isinstance(over, dict):
            raise InputError([_no_entry(path, under, overrides.positions.of_value(path))])
        unknown = [name for name in over if name not in under]
        if unknown:
            where = (*path, unknown[0])
            raise InputError([_no_entry(where, under, overrides.positions.of_key(where))])
        return under | {name: overridden(under[name], over[name], (*path, name)) for name in over}

    entries = {name: over for name, over in overrides.data.items() if name != SCALE}
    return YamlDocument(overridden(profile.data, entries, ()), Positions(places))


def _spelled(overridden: Positions, path: Path) -> str:
    """Name a profile's field in errors; fields that the scenario sets as in the scenario."""
    if "value" in path:
        depth = path.index("value")
        if path[:depth] in overridden.places:
            return f"hardware.{dotted(path[:depth] + path[depth + 1 :])}"
    return dotted(path)


def _is_entry(data: Any) -> bool:
    return isinstance(data, dict) and "value" in data and "source" in data


def _no_entry(path: Path, around: Any, location: Location | None) -> Problem:
    # The name, version and description of a profile are no entries.
    sections = around if isinstance(around, dict) else {}
    names = [name for name, data in sections.items() if isinstance(data, dict)]
    question = did_you_mean(str(path[-1]), names)
    return Problem(
        "E205",
        f"hardware.{dotted(path)} is not an entry of the profile",
        location,
        reason="a scenario can override only entries, which have a value and a source",
        fix=f"{question}entries and sections here: {', '.join(names) or 'none'}",
    )
