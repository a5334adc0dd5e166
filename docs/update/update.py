"""Documents with what they quote computed anew."""

from collections.abc import Callable, Iterable, Iterator

from docs.update import (
    attention_errors,
    commands,
    expert_errors,
    models,
    network_errors,
    papers,
    recompute,
    simulations,
    stacks,
    what_ifs,
)
from docs.update.documents import text_of
from docs.update.markers import Marked, marked, replaced
from docs.update.request import Generator, Request
from simtrain.explanations import explanations
from simtrain.pages.explanation_page import errors_document

GENERATORS: dict[str, Generator] = {
    **simulations.GENERATORS,
    **models.GENERATORS,
    **recompute.GENERATORS,
    **papers.GENERATORS,
    **stacks.GENERATORS,
    **network_errors.GENERATORS,
    **expert_errors.GENERATORS,
    **attention_errors.GENERATORS,
    **what_ifs.GENERATORS,
    **commands.GENERATORS,
}
"""What a marker may name, with the words that may follow in the docstrings of the functions."""

PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/errors.md": lambda: errors_document(explanations().values()),
    "docs/reference/commands.md": commands.help_page,
    "docs/reference/scenario.md": commands.scenario_page,
}
"""Documents of which every line is generated."""


def value(document: str, one: Marked) -> str:
    """What has to stand between two markers of a document.

    Raises:
        ValueError: the marker names no generator.
    """
    name, _, words = one.request.partition(" ")
    if name not in GENERATORS:
        known = ", ".join(sorted(GENERATORS))
        raise ValueError(f'{document}:{one.line}: no generator "{name}"; there are {known}')
    return GENERATORS[name](Request(document, name, words, one.before))


def updated(document: str) -> str:
    """The text of a document with everything between its markers computed anew."""
    if document in PAGES:
        return PAGES[document]()
    return replaced(text_of(document), lambda one: value(document, one))


def stale(document: str, only: Iterable[str] = GENERATORS) -> Iterator[str]:
    """What is not as it has to be: place, what stands there, what has to.

    Args:
        document: such as README.md.
        only: look at what these generators compute, and leave the rest out.
    """
    if document in PAGES and text_of(document) != PAGES[document]():
        yield f"{document}: not what `python -m docs.update` writes"
    for one in marked(text_of(document)):
        if one.request.partition(" ")[0] in GENERATORS.keys() - set(only):
            continue
        expected = value(document, one)
        if one.text != expected:
            yield f"{document}:{one.line}: {one.request}\n  has {one.text}\n  not {expected}"
