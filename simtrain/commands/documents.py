"""Documents by name: the written pages of docs/, and references made from the program itself.

References are made when they are read, on the site and in `simtrain docs`, so none can be stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from simtrain.base.resources import document_files
from simtrain.errors import InputError, did_you_mean

_ENDING = ".md"
_LONGEST_NAME = 80


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
        """The page in Markdown."""
        page: Callable[[], str] = import_module(f"simtrain.commands.references.{self.module}").page
        return page()


REFERENCES: Mapping[str, Reference] = {
    "reference/commands": Reference("Commands", "commands_page"),
    "reference/errors": Reference("Errors", "errors_page"),
    "reference/json": Reference("JSON", "json_page"),
    "reference/scenario": Reference("Fields of a scenario", "fields_page"),
}


def document_titles() -> dict[str, str]:
    """Titles of all documents by name, such as "tutorial" and "reference/errors"."""
    titles = {name: reference.title for name, reference in REFERENCES.items()}
    for name, path in document_files().items():
        with path.open(encoding="utf-8") as lines:
            titles[name] = next(lines).removeprefix("# ").rstrip("\n")
    return dict(sorted(titles.items()))


def document_text(name: str) -> str:
    """Return a document in Markdown.

    Args:
        name: its name, the last part of its name, or "docs/NAME.md".

    Raises:
        InputError: no document has this name (E101).
    """
    files = document_files()
    full_name = _full_name(name, [*files, *REFERENCES])
    if full_name in REFERENCES:
        return REFERENCES[full_name].text
    return files[full_name].read_text(encoding="utf-8")


def _full_name(name: str, names: list[str]) -> str:
    wanted = name.removeprefix("docs/").removesuffix(_ENDING)
    matching = [each for each in names if wanted in (each, each.rpartition("/")[2])]
    if not matching:
        question = did_you_mean(wanted, [*names, *(each.rpartition("/")[2] for each in names)])
        message = f'there is no document named "{wanted[:_LONGEST_NAME]}"'
        raise InputError.of("E101", message, fix=f"{question}simtrain docs lists the names")
    return matching[0]
