"""Tables, bars and notes for terminal pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_BAR_WIDTH, _LEAST_BAR = 30, 8
# Padding on both sides of a column, and a line.
_FRAME = 3
_WHOLE = (">", "<")
"""Prefixes of the headings of columns that are not wrapped."""


def table_of(
    *headings: str,
    title: str | Text | None = None,
    rows: Iterable[Sequence[RenderableType]] = (),
    no_wrap: bool = False,
    **settings: Any,
) -> Table:
    """Build a table; a column is right-aligned if its heading begins with ">".

    Right-aligned columns contain numbers and are not wrapped, to keep numbers with their units. A
    column is not wrapped either if its heading begins with "<".
    """
    table = Table(title=title, title_justify="left", **settings)
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        is_whole = heading.startswith(_WHOLE)
        table.add_column(heading.lstrip("<>"), justify=justify, no_wrap=no_wrap or is_whole)
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: RenderableType) -> RenderableType:
    """Return a cell; users choose some texts, whose brackets are not markup."""
    return Text(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class FittedTable:
    """A table that omits columns to fit the terminal.

    Args:
        headings: as in `table_of`.
        rows: cells of each row.
        optional: headings of the columns that can be omitted, the least important first.
        title: text above the table.
        end: cells of a closing row, separated by a line.
        styles: style of each row; by default none has a style.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[RenderableType]]
    optional: tuple[str, ...] = ()
    title: str | None = None
    end: Sequence[RenderableType] = ()
    styles: Sequence[str | None] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table with as many columns as fit."""
        choices = (self.optional[:number] for number in range(len(self.optional)))
        fitting = (one for one in choices if self._width(one) <= options.max_width)
        yield self._table(next(fitting, self.optional))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Use the full width."""
        return Measurement(1, options.max_width)

    def _table(self, left_out: tuple[str, ...]) -> Table:
        """Build the table without the columns whose headings are in `left_out`."""
        shown = [place for place, name in enumerate(self.headings) if name not in left_out]
        table = table_of(*(self.headings[place] for place in shown), title=self.title)
        for cells, style in zip(self.rows, self.styles or [None] * len(self.rows), strict=True):
            table.add_row(*(_cell(cells[place]) for place in shown), style=style)
        if self.end:
            table.add_section()
            table.add_row(*(_cell(self.end[place]) for place in shown))
        return table

    def _width(self, left_out: tuple[str, ...]) -> int:
        """Width that the table needs if only text is wrapped, between words."""
        rows = [*self.rows, self.end] if self.end else self.rows
        widths = [
            max(
                _longest_line(heading.lstrip("<>")),
                *(_least_width(row[place], heading) for row in rows),
            )
            for place, heading in enumerate(self.headings)
            if heading not in left_out
        ]
        return sum(width + _FRAME for width in widths) + 1


@dataclass(frozen=True)
class ColumnGroups:
    """Columns of text, split into several tables if the terminal is narrow.

    Args:
        columns: cells by row name, for each heading; all columns have the same rows.
    """

    columns: Mapping[str, Mapping[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render tables with as many columns as fit, at least one each."""
        rows = list(next(iter(self.columns.values())))
        names_width = max(map(cell_len, rows)) + 2
        group: list[str] = []
        width = names_width
        for heading, cells in self.columns.items():
            needed = max(cell_len(heading), *map(cell_len, cells.values())) + 2
            if group and width + needed > options.max_width:
                yield self._table(group, rows)
                group, width = [], names_width
            group.append(heading)
            width += needed
        yield self._table(group, rows)

    def _table(self, headings: Sequence[str], rows: Sequence[str]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("")
        for heading in headings:
            table.add_column(Text(heading), justify="right", overflow="fold")
        for row in rows:
            cells = [Text(self.columns[heading][row]) for heading in headings]
            table.add_row(Text(row, style="bold"), *cells)
        return table


def _longest_line(text: str) -> int:
    return max((cell_len(line) for line in text.splitlines()), default=0)


def _least_width(cell: RenderableType, heading: str) -> int:
    if isinstance(cell, Bar):
        return _LEAST_BAR
    text = str(cell)
    if heading.startswith(_WHOLE):
        return _longest_line(text)
    return max((cell_len(word) for word in text.split()), default=0)


def properties(rows: Iterable[tuple[str, str]]) -> Table:
    """Build a table of names in bold and their values."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="bold"), _cell(value))
    return table


@dataclass(frozen=True)
class Bar:
    """A bar with a length proportional to a share of 1; all bars of a column have one scale."""

    share: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fill the share of the column's width."""
        yield Text("█" * round(options.max_width * self.share), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Allow a narrow column; all its bars are scaled alike."""
        return Measurement(_LEAST_BAR, _BAR_WIDTH)


def verdict(is_ok: bool, words: str, failure: str = "FAILED") -> Text:
    """Build the closing line of a page: OK or a failure, with an explanation."""
    return Text(f"OK: {words}", "bold green") if is_ok else Text(f"{failure}: {words}", "bold red")


def evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below `count`: the first, the last, some between."""
    shown, last = min(count, most), count - 1
    return [round(place * last / max(shown - 1, 1)) for place in range(shown)]


def notes(texts: Iterable[str]) -> list[Text]:
    """Format remarks below the tables."""
    return [Text(text, style="dim") for text in texts]
