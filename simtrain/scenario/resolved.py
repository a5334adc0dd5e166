"""All settings of a scenario with defaults resolved, and what decided each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from simtrain.base.entry import Entry
from simtrain.base.plain_data import PlainData
from simtrain.base.strict_yaml import data_of
from simtrain.base.strict_yaml.reading import leaves
from simtrain.base.values import dataclass
from simtrain.scenario.rule import value_getter
from simtrain.scenario.schema import STACK_DEFAULTS, Scenario
from simtrain.scenario.section import is_change
from simtrain.scenario.software import Stack, load_stack

Decider = Literal["--set", "scenario", "software stack", "default"]
"""What decides a setting, in order of precedence."""
_SOFTWARE, _TOKENS = "software.", "model.seq_length"


@dataclass(frozen=True, slots=True)
class ResolvedSetting(PlainData):
    """A setting, and what decided it.

    Args:
        field: the dotted name of the field.
        value: its value, with the default resolved; null if the hardware profile decides.
        decided_by: `--set` (or a change in Python), the scenario's file, its software stack, or
            simtrain's default: the first that has a value.
        source: the place in the file, or what the software stack cites; "" for defaults.
    """

    field: str
    value: Any
    decided_by: Decider
    source: str


@dataclass(frozen=True, slots=True)
class ResolvedSettings(PlainData):
    """All settings of a scenario.

    Args:
        scenario: the name of the scenario.
        software: its software stack.
        settings: its settings, in the order of the sections of a scenario.
    """

    scenario: str | None
    software: str
    settings: tuple[ResolvedSetting, ...]


def settings_of(scenario: Scenario) -> dict[str, Any]:
    """Return all settings of a scenario by their dotted names, with defaults resolved.

    Entries of the software stack that the scenario does not override are null. Of the model of a
    recorded program, only the number of tokens is known.
    """
    values = {".".join(map(str, path)): value for path, value in leaves(data_of(scenario))}
    values |= scenario.stack_defaults
    if scenario.program is not None:  # its ops have all sizes of its model
        sizes = [field for field in values if field.startswith("model.") and field != _TOKENS]
        values = {field: value for field, value in values.items() if field not in sizes}
    return values


def resolved_settings(scenario: Scenario) -> ResolvedSettings:
    """Return every setting with what decided it."""
    settings = tuple(_resolved(scenario))
    return ResolvedSettings(scenario.name, scenario.software.stack, settings)


def _resolved(scenario: Scenario) -> Iterator[ResolvedSetting]:
    stack = load_stack(scenario.software.stack, scenario.circumstances)
    written = data_of(scenario, only_set=True)
    values_written = {".".join(map(str, path)) for path, _ in leaves(written)}
    for field, value in settings_of(scenario).items():
        place = scenario.positions.places.get(tuple(field.split(".")))
        entry = _entry(stack, field)
        if field in values_written and place and is_change(place.value):
            yield ResolvedSetting(field, value, "--set", "")
        elif field in values_written and value is not None:
            yield ResolvedSetting(field, value, "scenario", str(place.value) if place else "")
        elif entry is not None:
            if field.startswith(_SOFTWARE):
                value = value_getter(field)(scenario)
            yield ResolvedSetting(field, value, "software stack", entry.source)
        else:
            yield ResolvedSetting(field, value, "default", "")


def _entry(stack: Stack, field: str) -> Entry[Any] | None:
    if field in STACK_DEFAULTS:
        name = STACK_DEFAULTS[field].entry
    elif field == "attention_backend":
        name = field
    elif field.startswith(_SOFTWARE) and field != "software.stack":
        name = field.removeprefix(_SOFTWARE)
    else:
        return None
    return stack.entry(name)
