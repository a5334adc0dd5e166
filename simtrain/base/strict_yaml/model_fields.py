"""Fields and examples of a pydantic model, looked up by path."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from simtrain.base.strict_yaml.document import Path


def annotation_of(model_class: type[BaseModel], path: Path) -> Any:
    """Type annotation of the section or field at `path`."""
    return reduce(_annotation_inside, path, model_class)


def legal_keys(model_class: type[BaseModel], path: Path) -> list[str]:
    """Legal keys of the section at `path`."""
    return list(_fields(annotation_of(model_class, path)))


def other_names(model_class: type[BaseModel], path: Path) -> Mapping[str, str]:
    """Map other programs' names to ours for the section at `path`."""
    section = annotation_of(model_class, path)
    models = typing.get_args(section) or (section,)
    return {
        name: instead
        for model in models
        for name, instead in getattr(model, "other_names", {}).items()
    }


def other_values(model_class: type[BaseModel], name: str) -> Mapping[str, str]:
    """Map other programs' values, in lower case, to remedies for the field with a dotted name."""
    values: Mapping[str, str] = getattr(model_class, "other_values", {}).get(name, {})
    return values


def example(model_class: type[BaseModel], path: Path) -> str | None:
    """First example of the field at `path`, if it has one."""
    section = annotation_of(model_class, path[:-1])
    field = _fields(section).get(str(path[-1])) if path else None
    return str(field.examples[0]) if field and field.examples else None


def fields_taking(section: Any, value: Any) -> list[str]:
    """Names of a section's fields that accept a plain value, by their types and limits alone."""
    names = []
    adapter = TypeAdapter[Any](section)
    for name in _fields(section):
        try:
            adapter.validate_python({name: value})
        except ValidationError as error:
            if any(name in detail["loc"] for detail in error.errors(include_url=False)):
                continue
        names.append(name)
    return names


def data_of(value: Any, *, only_set: bool = False) -> Any:
    """Convert a model to plain data with the field names of files.

    Args:
        value: a model, or any other value, which is returned unchanged.
        only_set: omit fields that were not set.

    Unlike `model_dump`, this keeps names and values that `model_copy` did not validate.
    """
    if not isinstance(value, BaseModel):
        return value
    fields, aliases = vars(value), _aliases(type(value))
    names = value.model_fields_set if only_set else fields
    return {
        aliases.get(name, name): data_of(inside, only_set=only_set)
        for name, inside in fields.items()
        if name in names
    }


@functools.cache
def _aliases(model_class: type[BaseModel]) -> dict[str, str]:
    fields = model_class.model_fields.items()
    return {name: field.serialization_alias or name for name, field in fields}


@functools.cache
def names_of(model_class: type[BaseModel], last: str) -> tuple[str, ...]:
    """Dotted names of all fields of a model whose last part is `last`."""
    return tuple(name for name in _dotted_names(model_class) if name.rpartition(".")[2] == last)


def settable_names(model_class: type[BaseModel]) -> list[str]:
    """Dotted names of all fields of a model that are no sections themselves."""
    names = list(_dotted_names(model_class))
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def _dotted_names(annotation: Any) -> Iterator[str]:
    for name, field in _fields(annotation).items():
        yield name
        yield from (f"{name}.{inside}" for inside in _dotted_names(field.annotation))


def _annotation_inside(annotation: Any, part: str | int) -> Any:
    """Type annotation of the key or index `part` inside an annotation."""
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        annotations = (_annotation_inside(argument, part) for argument in arguments)
        return next((annotation for annotation in annotations if annotation is not None), None)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arguments[1]
    if isinstance(origin, type) and issubclass(origin, (list, tuple)):
        return arguments[0]
    field = _fields(annotation).get(str(part))
    return field.annotation if field else None


def _fields(annotation: Any) -> dict[str, FieldInfo]:
    """Fields of a model, or of all models of a union, by their names in files."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return {str(field.validation_alias or name): field for name, field in fields}
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        models = typing.get_args(annotation)
        return {name: field for model in models for name, field in _fields(model).items()}
    return {}
