"""Compute the text between markers of documents again.

The opening marker of a block names a generator and its arguments: `<!--=table5-->`. Each marker has
its own line, and empty lines separate a table from it; `<!--/-->` ends the block.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

from docs.update import commands, fit_errors, papers, published
from docs.update.documents import text_of
from docs.update.request import Request

_BLOCK = re.compile(
    r"^(?P<indent>[ ]*)<!--=(?P<request>.*?)-->\n(?P<text>.*?)<!--/-->", re.DOTALL | re.MULTILINE
)
Generator = Callable[[Request], str]
"""Returns the text between two markers."""


def generators_of(*modules: ModuleType) -> dict[str, Generator]:
    """Return the generators of modules by name: their public functions of a request alone."""
    return {
        name: function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and inspect.get_annotations(function) == {"request": Request, "return": str}
    }


GENERATORS = generators_of(commands, fit_errors, papers, published)
"""Generators by the name in a marker. Their docstrings list their arguments."""


def requests(document: str, text: str) -> Iterator[tuple[re.Match[str], Request]]:
    """Yield the blocks of a document's text, and what their markers request."""
    for block in _BLOCK.finditer(text):
        name, _, words = block["request"].partition(" ")
        yield block, Request(document, name, words, text[: block.start()])


def _value(request: Request) -> str:
    """Return the current text of a block.

    Raises:
        ValueError: the marker names no generator.
    """
    if request.name not in GENERATORS:
        names = ", ".join(sorted(GENERATORS))
        place = f"{request.document}:{request.line}"
        raise ValueError(f'{place}: no generator "{request.name}"; there are {names}')
    return GENERATORS[request.name](request)


def updated(document: str, text: str, only: Iterable[str] = GENERATORS) -> str:
    """Return a document's text with current text in the blocks of some generators."""
    names, done, end = set(only), "", 0
    for block, request in requests(document, text):
        if request.name in names or request.name not in GENERATORS:
            gap = [""] if block["text"].startswith("\n") else []
            lines = [*gap, *_value(request).split("\n"), *gap, "<!--/-->"]
            indented = (f"{block['indent']}{line}" if line else "" for line in lines)
            done += text[end : block.start("text")] + "\n".join(indented)
            end = block.end()
    return done + text[end:]


def stale(names: Iterable[str], only: Iterable[str] = GENERATORS) -> Iterator[str]:
    """Yield the difference of each document with stale blocks.

    Args:
        names: paths of documents, such as README.md.
        only: names of the generators to check.
    """
    for document in names:
        text = text_of(document)
        lines = text.splitlines(), updated(document, text, only).splitlines()
        yield from difflib.unified_diff(*lines, document, "now", n=0, lineterm="")
