"""Requests of markers, and formats of numbers in documents."""

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType


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


Generator = Callable[[Request], str]
"""Returns the text between two markers."""


def generators_of(module: ModuleType) -> dict[str, Generator]:
    """Return the generators of a module by name: its public functions of a request alone."""
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and inspect.get_annotations(function) == {"request": Request, "return": str}
    }


def percent(share: float, digits: int = 1) -> str:
    """Format a share as "5.5 %"."""
    return f"{share:.{digits}%}".replace("%", " %")


def signed_percent(share: float, digits: int = 1) -> str:
    """Format a change as "+5.5 %" or "−5.5 %"."""
    return f"{share:+.{digits}%}".replace("%", " %").replace("-", "−")


def seconds(time_s: float) -> str:
    """Format seconds with two decimals, or with three below one second."""
    return f"{time_s:.2f} s" if time_s >= 1 else f"{time_s:.3f} s"


def compared(published: float, ours: float, unit: str) -> list[str]:
    """Return three cells: a published number, ours, and the error of ours."""
    numbers = (f"{number:.1f} {unit}" for number in (published, ours))
    return [*numbers, signed_percent(ours / published - 1)]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"|{'|'.join(cells)}|" if cells[0] == "---" else f"| {' | '.join(cells)} |"
        for cells in lines
    )
