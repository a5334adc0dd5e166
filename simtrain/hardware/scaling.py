"""Hardware with more or less of some resources: `hardware.scale` of a scenario, and `--scale`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from simtrain.base.strict_yaml import YamlDocument
from simtrain.base.strict_yaml.document import section
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.hardware.contradictions import SET_IN_SCENARIO
from simtrain.hardware.entries import entries_of, with_source
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.upgrades import RESOURCES, Resource, with_more

SCALE = "scale"
"""The section of `hardware` with a factor for each of some resources."""


def scale_overrides(scales: Iterable[str]) -> list[str]:
    """Return the overrides of a scenario that stand for `--scale`.

    Args:
        scales: such as "network=2x" or "tensor_cores=0.5".

    Raises:
        InputError: there is no such resource, or the factor is not a number above 0 (E208).
    """
    overrides = []
    for scale in scales:
        name, _, factor = scale.partition("=")
        location = Location(f"--scale {scale}")
        number = _factor(factor, location)
        _resources(name, location)
        overrides.append(f"hardware.{SCALE}.{name}={number!r}")
    return overrides


def scaled(profile: HardwareProfile, overrides: YamlDocument) -> HardwareProfile:
    """Return a profile with the factors of the section `scale` of a scenario's overrides.

    Entries that change have the source of entries that the scenario sets.

    Raises:
        InputError: as `scale_overrides`, or the section is not a mapping (E208).
    """
    if SCALE not in overrides.data:
        return profile
    factors = section(overrides, (SCALE,))
    if not isinstance(factors.data, dict):
        fix = "write scale: {network_bandwidth: 2}"
        message = f"hardware.{SCALE} is {factors.data!r}"
        raise InputError.of("E208", message, overrides.positions.of_value((SCALE,)), fix)
    changed = profile
    for name, factor in factors.data.items():
        resources = _resources(name, factors.positions.of_key((name,)))
        number = _factor(str(factor), factors.positions.of_value((name,)))
        changed = with_more(changed, resources, number)
    before = dict(entries_of(profile))
    for name, entry in entries_of(changed):
        if entry.value != before[name].value:
            changed = with_source(changed, name, SET_IN_SCENARIO)
    return changed


def _resources(name: str, location: Location | None) -> list[Resource]:
    """Return the resource of a name, or those whose names begin with it as a word."""
    whole = [resource for key, resource in RESOURCES.items() if key == name]
    parts = [resource for key, resource in RESOURCES.items() if key.startswith(f"{name}_")]
    if whole or parts:
        return whole or parts
    words = {key.partition("_")[0] for key in RESOURCES}
    question = did_you_mean(name, [*RESOURCES, *words])
    fix = f"{question}resources are: {', '.join(RESOURCES)}; network means all of network_*"
    raise InputError.of("E208", f'there is no resource "{name}"', location, fix)


def _factor(text: str, location: Location | None) -> float:
    try:
        factor = float(text.strip().lower().removesuffix("x"))
    except ValueError:
        factor = math.nan
    if 0 < factor < math.inf:
        return factor
    fix = "write a factor above 0, such as 2x or 0.5"
    raise InputError.of("E208", f'"{text}" is not a factor', location, fix)
