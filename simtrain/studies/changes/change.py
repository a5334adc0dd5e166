"""Changes of a scenario or of its machine, and values that fields can have."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from simtrain.base.strict_yaml import as_scalar
from simtrain.base.strict_yaml.validation import annotation_of
from simtrain.hardware.upgrades import Resource, with_more
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.section import MEANT_BY_A_WORD

ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Change:
    """Fields of a scenario and their new values, which change together.

    Args:
        values: the new values by the fields' dotted names, as for `Scenario.replace`.
    """

    values: Mapping[str, Any]

    def __or__(self, other: Change) -> Change:
        return Change({**self.values, **other.values})

    @property
    def options(self) -> str:
        """The change as options of the command line, quoted for a shell."""
        settings = (quote(setting_in_words(*setting)) for setting in self.values.items())
        return " ".join(f"--set {setting}" for setting in settings)

    def applied_to(self, scenario: Scenario) -> Scenario:
        """Return the changed scenario.

        Raises:
            InputError: a field or a value does not exist.
        """
        return scenario.replace(self.values)


def setting_in_words(field: str, value: object) -> str:
    """Format a field and its value as an argument of --set."""
    return f"{field}={_written(value)}"


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if not isinstance(value, RecomputePolicy):
        return as_scalar(value)
    details = value.model_dump(exclude_defaults=True, exclude={"strategy"})
    spelled = {"strategy": value.strategy} | details
    words = (f"{name}: {_written(detail)}" for name, detail in spelled.items())
    return f"{{{', '.join(words)}}}" if details else value.strategy


@dataclass(frozen=True, slots=True)
class MachineChange:
    """More or less of some resources of a machine.

    Args:
        resources: what changes.
        factor: rates are multiplied by it, latencies divided by it.
    """

    resources: tuple[Resource, ...]
    factor: float

    def applied_to(self, machine: Machine) -> Machine:
        """Return the changed machine."""
        return Machine.of(with_more(machine.profile, self.resources, self.factor), machine.engine)


def changes_of(scenario: Scenario, values_of: Mapping[str, Iterable[Any]]) -> Iterator[Change]:
    """Yield a change for each value of each field that the scenario does not have.

    Args:
        scenario: the scenario.
        values_of: values to try, by field.
    """
    for field, values in values_of.items():
        for value in dict.fromkeys(values):
            if not _has(scenario, field, value):
                yield Change({field: value})


def combinations_of(values_of: Mapping[str, Iterable[Any]]) -> Iterator[Change]:
    """Yield a change for each combination of values of all fields; without fields, an empty one.

    Args:
        values_of: values to try, by field.
    """
    for values in itertools.product(*values_of.values()):
        yield Change(dict(zip(values_of, values, strict=True)))


def value_at(scenario: Scenario, field: str) -> Any:
    """Return a scenario's value of a field, such as that of "batch.global"."""
    inner: Any = scenario
    for part in field.split("."):
        names = {
            of.serialization_alias or name: name for name, of in type(inner).model_fields.items()
        }
        inner = getattr(inner, names.get(part, part))
    return inner


def _has(scenario: Scenario, field: str, value: Any) -> bool:
    """Whether a field has a value; a section with a word for it may have more than the word says.

    `recompute: full` is no change of a scenario that recomputes the first layers in full.
    """
    is_word = field in MEANT_BY_A_WORD and isinstance(value, str)
    place = f"{field}.{MEANT_BY_A_WORD[field]}" if is_word else field
    return bool(value_at(scenario, place) == value)


def all_values(field: str) -> tuple[Any, ...]:
    """Return the values of a flag or a choice, such as "overlap.userbuffers"; () for others."""
    return tuple(_members(annotation_of(Scenario, tuple(field.split(".")))))


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the values of a type that is a flag or a choice, also inside a union."""
    origin = get_origin(annotation)
    if annotation is bool:
        yield from (False, True)
    elif origin is Literal:
        yield from get_args(annotation)
    elif origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
