"""Descriptions of the fields of a scenario, parsed from the docstrings of its sections."""

from __future__ import annotations

import inspect
import re
import textwrap

from pydantic import BaseModel

# "name: text" or "name, name: text" at the start of a line; continuation lines are indented.
_ENTRY = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): (.*(?:\n +.*)*)", re.MULTILINE)


def summary(section: type[BaseModel]) -> str:
    """Return the first line of a section's docstring."""
    return inspect.getdoc(section).partition("\n")[0]  # type: ignore[union-attr]


def descriptions(section: type) -> dict[str, str]:
    """Return the description of each field in a class's docstring, by field name."""
    doc = inspect.getdoc(section) or ""
    head, _, arguments = doc.partition("\nArgs:\n")
    arguments, _, _ = arguments.partition("\n\n")
    doc = f"{head}\n{textwrap.dedent(arguments)}"
    return {
        name: " ".join(text.split())
        for names, text in _ENTRY.findall(doc)
        for name in names.split(", ")
    }


def name_in_files(section: type[BaseModel], name: str) -> str:
    """Return the name of a field in scenario files, such as `global` for `global_`."""
    return str(section.model_fields[name].validation_alias or name)


def section_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the section class of a field, or None if the field is a plain value."""
    annotation = section.model_fields[name].annotation
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def capitalized(text: str) -> str:
    """Return a text with an upper-case first letter."""
    return text[:1].upper() + text[1:]
