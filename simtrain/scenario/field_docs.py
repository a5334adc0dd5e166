"""What each field of a scenario means, read from the docstrings of its sections."""

from __future__ import annotations

import inspect
import re

from pydantic import BaseModel

# "name: text" or "name, name: text" at the start of a line; more of the text is indented.
_ENTRY = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): (.*(?:\n +.*)*)", re.MULTILINE)


def summary(section: type[BaseModel]) -> str:
    """The first line of a section's docstring."""
    return inspect.getdoc(section).partition("\n")[0]  # type: ignore[union-attr]


def descriptions(section: type[BaseModel]) -> dict[str, str]:
    """The text of each field that the docstring describes, by its name in files."""
    doc = inspect.getdoc(section) or ""
    return {
        name: " ".join(text.split())
        for names, text in _ENTRY.findall(doc)
        for name in names.split(", ")
    }


def name_in_files(section: type[BaseModel], name: str) -> str:
    """The name by which files give a field: `global` for `global_`."""
    return str(section.model_fields[name].validation_alias or name)


def section_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    annotation = section.model_fields[name].annotation
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def capitalized(text: str) -> str:
    """The text as a sentence of its own."""
    return text[:1].upper() + text[1:]
