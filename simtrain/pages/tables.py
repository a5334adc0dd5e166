"""Tables, bars and notes for the pages of a terminal."""

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
# A column has a blank on either side, and a line.
_FRAME = 3
_WHOLE = (">", "<")
"""How the headings of columns begin that are not wrapped."""


def table_of(
    *headings: str,
    title: str | Text | None = None,
    rows: Iterable[Sequence[RenderableType]] = (),
    no_wrap: bool = False,
    **settings: Any,
) -> Table:
    """A table; the column of a heading that begins with ">" is aligned to the right.

    Such a column holds numbers, which no line break parts from their units. The column of a heading
    that begins with "<" holds text that is not wrapped either.
    """
    table = Table(title=title, title_justify="left", **settings)
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        is_whole = heading.startswith(_WHOLE)
        table.add_column(heading.lstrip("<>"), justify=justify, no_wrap=no_wrap or is_whole)
    for row in rows:
        table.add_row(*row)
    return table


@dataclass(frozen=True)
class FittedTable:
    """A table that fits the terminal by leaving columns out.

    Args:
        headings: as in `table_of`.
        rows: the cells of each row, and the row's style.
        optional: headings of the columns to leave out, the least important first.
        title: stands above the table.
        end: the cells of a row below a line, if there is one.
    """

    headings: tuple[str, ...]
    rows: Sequence[tuple[Sequence[RenderableType], str | None]]
    optional: tuple[str, ...] = ()
    title: str | None = None
    end: Sequence[RenderableType] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table with as many columns as fit."""
        left_out: tuple[str, ...] = ()
        for number in range(len(self.optional) + 1):
            left_out = self.optional[:number]
            if self._width(left_out) <= options.max_width:
                break
        yield self._table(left_out)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """All that there is."""
        return Measurement(1, options.max_width)

    def _table(self, left_out: tuple[str, ...]) -> Table:
        shown = [place for place, name in enumerate(self.headings) if name not in left_out]
        table = table_of(*(self.headings[place] for place in shown), title=self.title)
        for cells, style in self.rows:
            table.add_row(*(cells[place] for place in shown), style=style)
        if self.end:
            table.add_section()
            table.add_row(*(self.end[place] for place in shown))
        return table

    def _width(self, left_out: tuple[str, ...]) -> int:
        """Columns of a terminal that the table needs if only text is wrapped, between words."""
        widths = [
            max(
                _longest_line(heading.lstrip("<>")),
                *(_least_width(row[place], heading) for row in self._all_rows()),
            )
            for place, heading in enumerate(self.headings)
            if heading not in left_out
        ]
        return sum(width + _FRAME for width in widths) + 1

    def _all_rows(self) -> list[Sequence[RenderableType]]:
        return [cells for cells, _ in self.rows] + ([self.end] if self.end else [])


@dataclass(frozen=True)
class ColumnGroups:
    """Columns of texts by heading, in as many tables below each other as the terminal needs.

    Args:
        columns: for each heading its cells by the name of their row, the same rows in all columns.
    """

    columns: Mapping[str, Mapping[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many columns in each table as fit, at least one."""
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
    text = Text.from_markup(str(cell)).plain
    if heading.startswith(_WHOLE):
        return _longest_line(text)
    return max((cell_len(word) for word in text.split()), default=0)


def properties(rows: Iterable[tuple[str, str]]) -> Table:
    """Names in bold, and their values."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        # Users choose some values: as Text, brackets in them are no markup.
        table.add_row(Text(name, style="bold"), Text(value))
    return table


@dataclass(frozen=True)
class Bar:
    """A bar whose length shows a share of 1, all bars of a column to the same scale."""

    share: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As much of the column's width as the share says."""
        yield Text("█" * round(options.max_width * self.share), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """A narrow column scales all its bars alike."""
        return Measurement(_LEAST_BAR, _BAR_WIDTH)


def verdict(is_ok: bool, words: str, failure: str = "FAILED") -> Text:
    """The closing line of a page: OK or a failure, and words on it."""
    return Text(f"OK: {words}", "bold green") if is_ok else Text(f"{failure}: {words}", "bold red")


def notes(texts: Iterable[str]) -> list[Text]:
    """Remarks below the tables."""
    return [Text(text, style="dim") for text in texts]
