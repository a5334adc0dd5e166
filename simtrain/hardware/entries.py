"""The entries of a hardware profile by their dotted names, such as "gemm.mainloop_flops"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

from simtrain.entry import Entry

Section = TypeVar("Section", bound=BaseModel)


def entries_of(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Entry[Any]]]:
    """Names and entries of a profile or of one of its sections, in the order of the schema."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Entry):
            yield f"{prefix}{name}", value
        elif isinstance(value, BaseModel):
            yield from entries_of(value, f"{prefix}{name}.")


def entry_of(section: BaseModel, name: str) -> Entry[Any]:
    """The entry with a dotted name, which the profile has."""
    found: Any = section
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def with_value(section: Section, name: str, value: object) -> Section:
    """A copy of a profile in which one entry has another value, which is not checked."""
    first, _, rest = name.partition(".")
    old = getattr(section, first)
    new = with_value(old, rest, value) if rest else old.model_copy(update={"value": value})
    return section.model_copy(update={first: new})
