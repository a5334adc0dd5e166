"""Fields that every scenario must set, from the types of its sections."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel


def missing_fields(
    data: Mapping[str, Any], section: type[BaseModel], prefix: str = ""
) -> Iterator[str]:
    """Yield the dotted name of each field without a default that the data of a section lack.

    Args:
        data: fields by name, with nested sections.
        section: the type of the section; `Scenario` for a whole scenario.
        prefix: begins each name, such as "model.".
    """
    for attribute, field in section.model_fields.items():
        key = str(field.validation_alias or attribute)
        types = (field.annotation, *typing.get_args(field.annotation))
        sections = [
            each for each in types if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        is_missing = key not in data and field.is_required()
        if sections and (is_missing or isinstance(data.get(key), dict)):
            yield from missing_fields(data.get(key, {}), sections[0], f"{prefix}{key}.")
        elif is_missing:
            yield f"{prefix}{key}"
