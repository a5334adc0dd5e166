"""`simtrain docs`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from simtrain.commands.output import CsvOption, MarkdownOption, Output, show_view
from simtrain.commands.shared import emit, refuse

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
"""Marks of generated figures."""


def _documents(typed: str) -> list[str]:
    """Return the documents whose names begin with the typed text, for completion."""
    from simtrain.base.resources import list_documents

    return [name for name in list_documents() if name.startswith(typed)]


def docs(
    name: Annotated[
        str | None, typer.Argument(help="Document to print.", autocompletion=_documents)
    ] = None,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
) -> None:
    """List the documents, or print one of them in Markdown.

    Example: simtrain docs tutorial
    """
    from simtrain.base.resources import find_document, list_documents
    from simtrain.views.names import names_view

    if name is not None:
        refuse({"--csv": as_csv, "--markdown": as_markdown}, "is for the list of documents")
        emit(_text(find_document(name).read_text(encoding="utf-8")))
        return
    texts = {each: find_document(each).read_text(encoding="utf-8") for each in list_documents()}
    rows = ((each, _title(text)) for each, text in texts.items())
    show_view(Output(as_csv=as_csv, as_markdown=as_markdown), names_view(("name", "title"), rows))


def _text(document: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", _COMMENT.sub("", document))


def _title(document: str) -> str:
    return document.partition("\n")[0].removeprefix("# ")
