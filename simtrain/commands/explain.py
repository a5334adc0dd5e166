"""`simtrain explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.shared import emit, text_width


def explain(
    code: Annotated[
        str | None, typer.Argument(help="Code of an error, such as E310. Without it, all codes.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print docs/reference/errors.md: every code in Markdown.")
    ] = False,
) -> None:
    """Explain an error code: what is wrong, why, how to fix it, and an example.

    Example: simtrain explain E310
    """
    from simtrain.explanations import explain, explanations
    from simtrain.pages.explanation_page import code_list, errors_document, explanation_page

    if everything:
        emit(errors_document(explanations().values()))
    elif code is None:
        emit(code_list(explanations().values(), text_width()))
    else:
        emit(explanation_page(explain(code), text_width()))
