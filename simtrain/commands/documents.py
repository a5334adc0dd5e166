"""Documents by name: the written pages of docs/, and references made from the program itself.

References are made when they are read, on the site and in `simtrain show`, so none can be stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from simtrain.base.resources import document_files

_ENDING = ".md"


@dataclass(frozen=True, slots=True)
class Reference:
    """A page made from the program itself.

    Args:
        title: its heading, for lists of documents.
        module: its file in `simtrain/commands/references/`, imported at its first use.
    """

    title: str
    module: str

    @property
    def text(self) -> str:
        page: Callable[[], str] = import_module(f"simtrain.commands.references.{self.module}").page
        return page()


REFERENCES: Mapping[str, Reference] = {
    "reference/commands": Reference("Commands", "commands_page"),
    "reference/errors": Reference("Errors", "errors_page"),
    "reference/scenario": Reference("Fields of a scenario", "fields_page"),
}


def document_titles() -> dict[str, str]:
    """Titles of all documents by name, such as "tutorial" and "reference/errors"."""
    titles = {name: reference.title for name, reference in REFERENCES.items()}
    for name, path in document_files().items():
        with path.open(encoding="utf-8") as lines:
            titles[name] = next(lines).removeprefix("# ").rstrip("\n")
    return dict(sorted(titles.items()))


def document_text(name: str) -> str | None:
    """Return a document in Markdown; None if no document has this name.

    Args:
        name: its name, the last part of its name, or "docs/NAME.md".
    """
    wanted, files = name.removeprefix("docs/").removesuffix(_ENDING), document_files()
    for full_name in (*files, *REFERENCES):
        if wanted in (full_name, full_name.rpartition("/")[2]):
            reference = REFERENCES.get(full_name)
            return reference.text if reference else files[full_name].read_text(encoding="utf-8")
    return None
