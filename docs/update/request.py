"""What a marker asks for, and how numbers are written."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A generator's name and the words after it.

    Args:
        document: the document of the marker.
        name: the generator's name.
        text: the words after it, as they stand there.
        before: the document up to the marker.
    """

    document: str
    name: str
    text: str
    before: str

    @property
    def words(self) -> list[str]:
        """The words, taken apart as by a shell."""
        return shlex.split(self.text)


Generator = Callable[[Request], str]
"""Computes what stands between two markers."""


def percent(share: float, digits: int = 1) -> str:
    """A share as "5.5 %"."""
    return f"{share:.{digits}%}".replace("%", " %")


def signed_percent(share: float, digits: int = 1) -> str:
    """A change as "+5.5 %" or "−5.5 %"."""
    return f"{share:+.{digits}%}".replace("%", " %").replace("-", "−")


def seconds(time_s: float) -> str:
    """Seconds with two decimals, or three of less than a second."""
    return f"{time_s:.2f} s" if time_s >= 1 else f"{time_s:.3f} s"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"|{'|'.join(cells)}|" if cells[0] == "---" else f"| {' | '.join(cells)} |"
        for cells in lines
    )
