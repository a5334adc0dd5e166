"""`simtrain docs`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from simtrain.commands.options import refuse
from simtrain.commands.output import ListOutput, show_view
from simtrain.commands.printing import emit

_CODE_OR_COMMENT = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->\n?", re.DOTALL | re.MULTILINE)
"""Comments mark generated figures; in code they are an example."""


def _documents(typed: str) -> list[str]:
    """Return the documents whose names begin with the typed text, for completion."""
    from simtrain.commands.documents import document_titles

    return [name for name in document_titles() if name.startswith(typed)]


def docs(
    name: Annotated[str | None, typer.Argument(autocompletion=_documents)] = None,
    *,
    output: ListOutput,
) -> None:
    """List the documents, or print one of them in Markdown.

    Args:
        name: document to print.

    Example: simtrain docs tutorial
    """
    from simtrain.commands.documents import document_text, document_titles
    from simtrain.views.view import names_view

    if name is not None:
        of_lists = {"--csv": output.as_csv, "--markdown": output.as_markdown}
        refuse(of_lists, "is for the list of documents")
        emit(_text(document_text(name)))
        return
    show_view(output, names_view(("name", "title"), document_titles().items()))


def _text(document: str) -> str:
    shown = _CODE_OR_COMMENT.sub(lambda part: part[0] * (part[0][0] == "`"), document)
    return re.sub(r"\n{3,}", "\n\n", shown)
