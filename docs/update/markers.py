"""Markers around generated text in documents.

An opening marker contains `=`, the name of a generator and its arguments. Within a line:
`<!--=time llama3_70b-->9.61 s<!--/-->`. Around a table or the output of a command, each marker has
its own line, and empty lines separate a table from it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

_MARKED = re.compile(
    r"(?P<indent>^[ ]*)?<!--=(?P<request>.*?)-->(?P<text>.*?)<!--/-->",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Marked:
    """Generated text between two markers.

    Args:
        request: name of a generator and its arguments.
        text: text between the markers, without empty lines around it.
        before: text of the document before the opening marker.
    """

    request: str
    text: str
    before: str

    @property
    def line(self) -> int:
        """Line of the marker in its document, from 1."""
        return self.before.count("\n") + 1


def marked(text: str) -> list[Marked]:
    """Return all generated texts of a document."""
    return [_marked(found) for found in _MARKED.finditer(text)]


def replaced(text: str, value: Callable[[Marked], str]) -> str:
    """Return the document with `value` of each generated text in its place.

    Raises:
        ValueError: a line begins with a marker and text follows on that line. Markdown renders
            such a line as HTML.
    """

    def new(found: re.Match[str]) -> str:
        one = _marked(found)
        indent, begins_line = found["indent"] or "", found["indent"] is not None
        opening, words = f"<!--={one.request}-->", value(one)
        if not found["text"].startswith("\n"):
            if begins_line:
                raise ValueError(f"line {one.line}: text on the line that begins with a marker")
            return f"{opening}{words}<!--/-->"
        gap = ["" for _ in range(found["text"].startswith("\n\n"))]
        lines = [opening, *gap, *words.split("\n"), *gap, "<!--/-->"]
        return "\n".join(f"{indent}{line}" if line else "" for line in lines)

    return _MARKED.sub(new, text)


def _marked(found: re.Match[str]) -> Marked:
    lines = found["text"].strip().split("\n")
    indent = found["indent"] or ""
    text = "\n".join(line.removeprefix(indent) for line in lines)
    return Marked(found["request"], text, found.string[: found.start()])
