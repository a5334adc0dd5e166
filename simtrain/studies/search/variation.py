"""The fields that a search varies or holds, as its caller asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simtrain.base.strict_yaml.document import dotted
from simtrain.base.strict_yaml.reading import parse_value
from simtrain.errors import InputError, Location
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.section import is_change
from simtrain.schedules import NAMED
from simtrain.studies.changes.change import value_at
from simtrain.studies.changes.values import all_values
from simtrain.studies.choose import is_open
from simtrain.studies.search.space import FIELDS
from simtrain.studies.sweep.fields import field_path

Varied = Mapping[str, Sequence[Any] | None]
"""Values by field; None for all that the field can have."""

_OF_THE_MACHINE = ("cluster", "hardware")
_OF_THE_FRAMEWORK = (
    "overlap.tensor_parallel",
    "memory.in_place_cross_entropy",
    "memory.deallocate_outputs",
)
"""Fields that say what a version of the framework does: no one chooses them for a layout."""
_OF_THE_TRAINING = ("memory.delayed_update",)
"""Fields that change what a training computes: its parameters are one step older."""
_REFINED_SECTIONS = ("parallelism", "placement", "memory", "overlap")
_NUMBERS = {"overlap.prefetch": (1, 2)}
"""Values to try of fields that are numbers."""
_ALL_VALUES = {"schedule": tuple(name for name, family in NAMED.items() if family.flushes)}
"""All values of coordinates that a search tries only some of by default. Schedules without a flush
train with other gradients: a search tries them if they are named.
"""


def read_vary(options: Sequence[str]) -> dict[str, Sequence[Any] | None]:
    """Parse options such as `batch.micro=1,2` or `overlap.userbuffers`.

    Raises:
        InputError: a value is not YAML.
    """
    varied: dict[str, Sequence[Any] | None] = {}
    for option in options:
        field, equals, text = option.partition("=")
        place = Location(f"--vary {option}")
        varied[field.strip()] = parse_value(f"[{text}]", place) if equals else None
    return varied


def check_varied(base: Scenario, vary: Varied) -> dict[str, tuple[Any, ...]]:
    """Return the validated values of fields that a search varies.

    Raises:
        InputError: a field or a value does not exist; the field is of the machine, is set by
            --set, has no list of all values (E838); `recompute: auto` is among the values (E838).
    """
    return {
        dotted(field_path(field, Location(f"--vary {field}"))): values
        for field, written in vary.items()
        if (values := _values(base, field, written))
    }


def check_held(hold: Sequence[str]) -> tuple[str, ...]:
    """Return the fields and sections that a search holds; refuse unknown ones (E802)."""
    return tuple(dotted(field_path(field, Location(f"--hold {field}"))) for field in hold)


def tunable_fields(scenario: Scenario) -> dict[str, tuple[Any, ...]]:
    """Return the fields that people tune for a layout and their values: flags and choices."""
    fields = (
        f"{section}.{name}"
        for section in _REFINED_SECTIONS
        for name in type(getattr(scenario, section)).model_fields
    )
    untuned = {*FIELDS.values(), *_OF_THE_FRAMEWORK, *_OF_THE_TRAINING}
    tunable = (field for field in fields if field not in untuned)
    values_of = {field: _NUMBERS.get(field) or all_values(field) for field in tunable}
    return {field: values for field, values in values_of.items() if values}


def _values(base: Scenario, field: str, written: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return the values of a field; () for those that a coordinate has in any case."""
    path, place = field_path(field, Location(f"--vary {field}")), Location(f"--vary {field}")
    if path[0] in _OF_THE_MACHINE:
        message, fix = "a search has one machine", "compare machines with simtrain plan --cluster"
        raise InputError.of("E838", message, place, fix)
    places = base.positions.places
    if any(is_change(at.value) for where, at in places.items() if where[: len(path)] == path):
        message = f"{field} is set by --set and varied"
        raise InputError.of("E838", message, place, "remove one of them")
    if written is None and dotted(path) in FIELDS.values():
        return _ALL_VALUES.get(dotted(path), ())
    chosen = all_values(dotted(path)) if written is None else tuple(written)
    if not chosen:
        fix = f"write them: --vary {field}=1,2"
        raise InputError.of("E838", f"{field} has no list of all its values", place, fix)
    validated = tuple(dict.fromkeys(_validated(base, field, value) for value in chosen))
    for value in validated:
        if isinstance(value, RecomputePolicy) and is_open(
            base.model_copy(update={"recompute": value})
        ):
            message, fix = "auto is a choice among policies", "set it: --set recompute=auto"
            raise InputError.of("E838", message, place, fix, "a search varies the policies")
    return validated


def _validated(base: Scenario, field: str, value: Any) -> Any:
    return value_at(base.replace({field: value}), field)
