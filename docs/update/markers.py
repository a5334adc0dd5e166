"""Markers around what is computed, and the text between them.

`<!--=time llama3_70b-->9.61 s<!--/-->` stands within a line: what begins with `=` names what to
compute, as in a spreadsheet. Around a table or the output of a command each marker has a line of
its own, with an empty line between it and the text.
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
    """What stands between two markers.

    Args:
        request: the name of a generator and its arguments.
        text: what stands there, without empty lines around it.
        before: the document up to the marker.
    """

    request: str
    text: str
    before: str

    @property
    def line(self) -> int:
        """The line of the marker in its document, from 1."""
        return self.before.count("\n") + 1


def marked(text: str) -> list[Marked]:
    """What stands between markers in a document."""
    return [_marked(found) for found in _MARKED.finditer(text)]


def replaced(text: str, value: Callable[[Marked], str]) -> str:
    """The document with other text between its markers.

    Raises:
        ValueError: a marker begins a line and its text follows on that line. Markdown takes the
            rest of such a line for HTML.
    """

    def new(found: re.Match[str]) -> str:
        one = _marked(found)
        indent, begins_line = found["indent"] or "", found["indent"] is not None
        opening, words = f"<!--={one.request}-->", value(one)
        if not found["text"].startswith("\n"):
            if begins_line:
                raise ValueError(f"line {one.line}: text on the line that begins with a marker")
            return f"{opening}{words}<!--/-->"
        lines = [opening, "", *words.split("\n"), "", "<!--/-->"]
        return "\n".join(f"{indent}{line}" if line else "" for line in lines)

    return _MARKED.sub(new, text)


def _marked(found: re.Match[str]) -> Marked:
    lines = found["text"].strip().split("\n")
    indent = found["indent"] or ""
    text = "\n".join(line.removeprefix(indent) for line in lines)
    return Marked(found["request"], text, found.string[: found.start()])
