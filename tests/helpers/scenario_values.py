"""Valid single values of every field of a scenario, which together may break any rule.

All values are small: a scenario of any of them is evaluated in milliseconds, unless it is refused.
"""

import copy
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from simtrain.scenario import Scenario

Values = dict[str, Any]
"""Values by field."""

_COUNTS: Values = yaml.safe_load(Path(__file__).with_name("field_values.yaml").read_text("utf-8"))
"""Values of fields that are neither flags nor choices, the one that most others allow first."""
_FIRST: Values = {"precision.compute": "bf16", "schedule": "1f1b", "attention_backend": "fused"}
_NOT_DRAWN = ("name", "description", "hardware", "program")


def _fields(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each field and each section that may be left out, with its annotation."""
    for name, field in section.model_fields.items():
        full, kinds = path + (field.serialization_alias or name), _kinds(field.annotation)
        inside = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inside or full in _COUNTS:
            yield full, field.annotation
        for kind in inside:
            yield from _fields(kind, f"{full}.")


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for kind in get_args(annotation) if get_origin(annotation) is not Literal else ():
        yield from _kinds(kind)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return all values of a flag or a choice."""
    values = [None] if type(None) in _kinds(annotation) else []
    for kind in _kinds(annotation):
        values += [False, True] if kind is bool else []
        values += get_args(kind) if get_origin(kind) is Literal else []
    return tuple(values)


def _values_of(field: str, annotation: Any) -> tuple[Any, ...]:
    values = _COUNTS.get(field) or _choices(annotation)
    first = _FIRST.get(field, values[0])
    return (first, *(value for value in values if value is not first))


FIELD_VALUES: dict[str, tuple[Any, ...]] = {
    field: _values_of(field, annotation)
    for field, annotation in _fields(Scenario)
    if field not in _NOT_DRAWN
}
"""Values of every field. The first ones together are a legal scenario."""
_REQUIRED = {"model.num_layers", "model.hidden_size", "model.num_attention_heads"}
_REQUIRED |= {"model.seq_length", "batch.micro", "batch.global", "cluster", "attention_backend"}


def nested(values: Mapping[str, Any]) -> Values:
    """Return values by field as sections; without those of a section that is left out."""
    data: Values = {}
    for field in sorted({*_REQUIRED, *values}):
        path, _, name = field.rpartition(".")
        if path in FIELD_VALUES and values.get(path) is None:
            continue
        section = data
        for part in filter(None, path.split(".")):
            section = section.setdefault(part, {})
        value = values[field] if field in values else FIELD_VALUES[field][0]
        section[name] = copy.copy(value)
    return data


def random_values(rng: random.Random) -> Values:
    """Draw values of a few fields, up to half of all."""
    number = rng.choice((3, 6, 12, len(FIELD_VALUES) // 2))
    fields = rng.sample(sorted(FIELD_VALUES), number)
    return {field: rng.choice(FIELD_VALUES[field]) for field in fields}
