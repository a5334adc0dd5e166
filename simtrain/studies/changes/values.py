"""All values of a field that can be listed, from its type."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from simtrain.base.strict_yaml.validation import annotation_of
from simtrain.scenario import Scenario

ZERO_STAGES = (0, 1, 2, 3)


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
