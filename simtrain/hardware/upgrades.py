"""The resources of a cluster, and profiles with more of one.

Every entry with a time, a bandwidth or a rate of FLOPs belongs to exactly one resource. With the
same factor more of all resources, every duration is divided by that factor.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from simtrain.base.strict_yaml import YamlDocument
from simtrain.base.strict_yaml.reading import section
from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.hardware.entries import entries_of, with_changed, with_source
from simtrain.hardware.profile import SCALE, SET_IN_SCENARIO, HardwareProfile


@dataclass(frozen=True, slots=True)
class Resource:
    """Entries of a profile that are bought together.

    Args:
        label: what pages call it.
        text: what its entries are, for the documents.
        rates: entries that "10 % more" multiplies by 1.1; names as for `with_changed`.
        times: entries that it divides by 1.1.
        is_capacity: whether it decides what fits, and no duration: more of it changes an iteration
            only if simtrain chooses the recompute.
        is_host: whether it also divides the host time per kernel of a scenario or of a software
            stack.
    """

    label: str
    text: str
    rates: Sequence[str] = ()
    times: Sequence[str] = ()
    is_capacity: bool = False
    is_host: bool = False


RESOURCES = {
    name: Resource(**fields)
    for name, fields in tomllib.loads(
        Path(__file__).with_name("resources.toml").read_text(encoding="utf-8")
    ).items()
}
"""The resources by the names of JSON."""


def with_more(
    profile: HardwareProfile, resources: Iterable[Resource], factor: float
) -> HardwareProfile:
    """Return a profile with `factor` times as much of some resources; sources do not change."""
    for resource in resources:
        for name in resource.rates:
            profile = with_changed(profile, name, lambda rate: type(rate)(rate * factor))
        for name in resource.times:
            profile = with_changed(profile, name, lambda time_s: time_s / factor)
        if resource.is_host:
            profile = profile.with_faster_host(factor)
    return profile


def scaled(profile: HardwareProfile, overrides: YamlDocument) -> HardwareProfile:
    """Return a profile with the factors of the section `scale` of a scenario's overrides.

    Entries that change have the source of entries that the scenario sets.

    Raises:
        InputError: there is no such resource, a factor is not a number above 0, or the section is
            not a mapping (E208).
    """
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
