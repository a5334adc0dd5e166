"""Compute the text between markers of documents again."""

from collections.abc import Iterable, Iterator

from docs.update import (
    commands,
    energy_cases,
    fit_errors,
    goodput_cases,
    iterations,
    lists,
    network_errors,
    papers,
    recorded,
    simulations,
    variation_cases,
)
from docs.update.documents import text_of
from docs.update.markers import Marked, marked, replaced
from docs.update.request import Generator, Request, generators_of

_MODULES = (
    *(simulations, iterations, lists, papers, fit_errors, network_errors),
    *(commands, goodput_cases, energy_cases, variation_cases, recorded),
)
GENERATORS: dict[str, Generator] = {}
for _module in _MODULES:
    GENERATORS |= generators_of(_module)
"""Generators by the name in a marker. Their docstrings list their arguments."""


def value(document: str, one: Marked) -> str:
    """Return the current text for the place between two markers of a document.

    Raises:
        ValueError: the marker names no generator.
    """
    name, _, words = one.request.partition(" ")
    if name not in GENERATORS:
        names = ", ".join(sorted(GENERATORS))
        raise ValueError(f'{document}:{one.line}: no generator "{name}"; there are {names}')
    return GENERATORS[name](Request(document, name, words, one.before))


def updated(document: str) -> str:
    """Return a document with current text between all of its markers."""
    return replaced(text_of(document), lambda one: value(document, one))


def stale(names: Iterable[str], only: Iterable[str] = GENERATORS) -> Iterator[str]:
    """Yield a line for each stale text: its place, the present text and the current text.

    Args:
        names: paths of documents, such as README.md.
        only: names of the generators to check.
    """
    skipped = GENERATORS.keys() - set(only)
    for document in names:
        for one in marked(text_of(document)):
            if one.request.partition(" ")[0] in skipped:
                continue
            expected = value(document, one)
            if one.text != expected:
                yield f"{document}:{one.line}: {one.request}\n  has {one.text}\n  now {expected}"
