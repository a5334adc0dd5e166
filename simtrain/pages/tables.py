"""Tables, bars and notes for the pages of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_BAR_WIDTH = 30


def table_of(
    *headings: str,
    title: str | Text | None = None,
    rows: Iterable[Sequence[RenderableType]] = (),
    no_wrap: bool = False,
    **settings: Any,
) -> Table:
    """A table; the column of a heading that begins with ">" is aligned to the right."""
    table = Table(title=title, title_justify="left", **settings)
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        table.add_column(heading.removeprefix(">"), justify=justify, no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    return table


def properties(rows: Iterable[tuple[str, str]]) -> Table:
    """Names in bold, and their values."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        # Users choose some values: as Text, brackets in them are no markup.
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def bar(share: float) -> str:
    """A bar whose length shows a share of 1."""
    return "█" * round(_BAR_WIDTH * share)


def verdict(is_ok: bool, words: str, failure: str = "FAILED") -> Text:
    """The closing line of a page: OK or a failure, and words on it."""
    return Text(f"OK: {words}", "bold green") if is_ok else Text(f"{failure}: {words}", "bold red")


def notes(texts: Iterable[str]) -> list[Text]:
    """Remarks below the tables."""
    return [Text(text, style="dim") for text in texts]
