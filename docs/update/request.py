"""Requests of markers, and formats of numbers in documents."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a marker: the name of a generator, and its arguments.

    Args:
        document: path of the document with the marker.
        name: name of the generator.
        text: arguments as written in the marker.
        before: text of the document before the marker.
    """

    document: str
    name: str
    text: str
    before: str

    @property
    def words(self) -> list[str]:
        """Arguments, split like words of a shell command."""
        return shlex.split(self.text)

    @property
    def line(self) -> int:
        """Line of the marker in its document, from 1."""
        return self.before.count("\n") + 1


def percent(share: float, digits: int = 1) -> str:
    """Format a share as "5.5 %"."""
    return f"{share:.{digits}%}".replace("%", " %")


def signed_percent(share: float, digits: int = 1) -> str:
    """Format a change as "+5.5 %" or "−5.5 %"."""
    return f"{share:+.{digits}%}".replace("%", " %").replace("-", "−")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [" | ".join(cells) for cells in (head, *rows)]
    first, *rest = (f"| {line} |" for line in lines)
    return "\n".join([first, f"|{'---|' * len(head)}", *rest])
