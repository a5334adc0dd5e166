"""The entries of a hardware profile by their dotted names, such as "gemm.mainloop_flops"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

from simtrain.base.entry import Entry

Section = TypeVar("Section", bound=BaseModel)


def entries_of(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Entry[Any]]]:
    """Yield the names and entries of a profile or section, in the order of the schema."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Entry):
            yield f"{prefix}{name}", value
        elif isinstance(value, BaseModel):
            yield from entries_of(value, f"{prefix}{name}.")


def entry_of(section: BaseModel, name: str) -> Entry[Any]:
    """Return the entry with a dotted name; the profile must have it."""
    value: Any = section
    for part in name.split("."):
        value = getattr(value, part)
    return value  # type: ignore[no-any-return]


def with_changed(section: Section, name: str, change: Callable[[Any], Any]) -> Section:
    """Return a copy of a profile in which the values with a dotted name are changed, unchecked.

    Args:
        section: a profile, or one of its sections.
        name: such as "gemm.mainloop_flops". `*` stands for every entry of a section or every item
            of a list. A missing entry stays missing.
        change: maps an old value to the new one.
    """
    return _changed(section, name.split("."), change)  # type: ignore[no-any-return]


def with_source(section: Section, name: str, source: str) -> Section:
    """Return a copy of a profile or section whose entry with a dotted name has another source."""
    head, _, rest = name.partition(".")
    value = getattr(section, head)
    if rest:
        changed = with_source(value, rest, source)
    else:
        changed = value.model_copy(update={"source": source, "fitted_on": None})
    return section.model_copy(update={head: changed})


def _changed(value: Any, path: list[str], change: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    if isinstance(value, Entry):
        return value.model_copy(update={"value": _changed(value.value, path, change)})
    if not path:
        return change(value)
    head, *rest = path
    if isinstance(value, list):
        return [_changed(item, rest, change) for item in value]
    names = type(value).model_fields if head == "*" else [head]
    return value.model_copy(
        update={name: _changed(getattr(value, name), rest, change) for name in names}
    )
