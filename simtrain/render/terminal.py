"""Draws a view in a terminal."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree

from simtrain.render.schedule_grid import ScheduleGrid
from simtrain.render.timeline_strip import TimelineStrip
from simtrain.views.view import (
    Branch,
    Cell,
    Column,
    Facts,
    Heading,
    LanesPicture,
    Paragraphs,
    Part,
    Row,
    SchedulePicture,
    Table,
    TimelinePicture,
    Verdict,
    View,
    fact_text,
    text_of,
    value_of,
)

_STYLES = {"strong": "bold", "soft": "dim", "bad": "red", None: ""}
_BAR_WIDTH, _LEAST_BAR = 30, 8
_FRAME = 3  # padding on both sides of a column, and a line
_GAP = 2  # spaces between columns without a frame
_DENSE_GAP = 1


def terminal_page(view: View, width: int | None = None) -> Group:
    """Return a view as a page of rich. An empty line sets off tables, facts, trees and pictures.

    Args:
        view: the view.
        width: columns after which a continued table goes on below; by default those of the console.
    """
    drawn: list[RenderableType] = []
    before: Part | None = None
    for part in view.shown:
        if before is not None and (_stands_apart(before) or _stands_apart(part)):
            drawn.append("")
        drawn.append(_drawn(part, width))
        before = part
    return Group(*drawn)


def _stands_apart(part: Part) -> bool:
    # A timeline ends with its own empty line, because files and pipes get none.
    return not isinstance(part, Paragraphs | Verdict | Heading | TimelinePicture | LanesPicture)


@functools.singledispatch
def _drawn(part: Any, width: int | None) -> RenderableType:
    """Draw a part; `width` is that of continued tables."""
    raise TypeError(f"{type(part).__name__} is not a part of a view")


@_drawn.register
def _(part: Facts, width: int | None) -> RenderableType:
    return properties(part.rows)


@_drawn.register
def _(part: Heading, width: int | None) -> RenderableType:
    if part.is_rule:
        return Rule(Text(part.text), align="left", style="dim")
    return Text(part.text, style="bold")


@_drawn.register
def _(part: Paragraphs, width: int | None) -> RenderableType:
    return Group(*(Text(text, style=_STYLES[part.style]) for text in part.texts))


@_drawn.register
def _(part: Branch, width: int | None) -> RenderableType:
    tree = Tree(_branch_text(part))
    _grow(tree, part)
    return tree


def _grow(tree: Tree, branch: Branch) -> None:
    for part in branch.parts:
        _grow(tree.add(_branch_text(part)), part)


def _branch_text(branch: Branch) -> Text:
    style = "dim" if branch.is_soft else ""
    return Text.assemble((branch.name, "bold"), (branch.text, style))


@_drawn.register
def _(part: Verdict, width: int | None) -> RenderableType:
    colour = "red" if not part.is_ok else "yellow" if part.doubt else "green"
    return Text(part.text, f"bold {colour}")


@_drawn.register
def _(part: TimelinePicture, width: int | None) -> RenderableType:
    return TimelineStrip(part.result)


@_drawn.register
def _(part: LanesPicture, width: int | None) -> RenderableType:
    return Group()  # only a page has the room


@_drawn.register
def _(part: SchedulePicture, width: int | None) -> RenderableType:
    return ScheduleGrid(part.schedule)


@_drawn.register
def _(part: Table, width: int | None) -> RenderableType:
    if part.layout == "continued":
        return ContinuedTable(part, width)
    if part.layout == "fitted":
        return FittedTable(part)
    return DenseTable(part) if part.layout == "dense" else _list(part)


def _list(table: Table) -> RichTable:
    """Draw names and a text, in aligned columns, with the text wrapped."""
    grid = RichTable.grid(padding=(0, _GAP, 0, 0))
    *names, text = table.columns
    for name in names:
        grid.add_column(no_wrap=True, justify=_justify(name))
    grid.add_column(justify=_justify(text))
    for row in table.rows:
        grid.add_row(*_cells(table, row, range(len(table.columns))))
    return grid


def _groups_that_fit(
    widths: Sequence[int], num_keys: int, gap: int, most: int
) -> Iterator[list[int]]:
    """Yield the columns that fit beside the keys, in order, at least one at a time.

    Args:
        widths: the width of each column.
        num_keys: first columns that every group has.
        gap: columns of the terminal between two columns of the table.
        most: columns of the terminal.
    """
    keys = range(num_keys)
    used = width = sum(widths[place] + gap for place in keys)
    group: list[int] = []
    for place in range(num_keys, len(widths)):
        if group and used + widths[place] > most:
            yield [*keys, *group]
            group, used = [], width
        group.append(place)
        used += widths[place] + gap
    yield [*keys, *group]


@dataclass(frozen=True)
class DenseTable:
    """A table with one space between columns, split into several if the terminal is narrow."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw tables with as many columns as fit beside the keys."""
        table = self.table
        if table.title:
            yield Text(table.title, style="bold")
        widths = [
            max(
                _longest_line(column.heading),
                *(cell_len(text_of(row.cells[place], column)) for row in table.rows),
            )
            for place, column in enumerate(table.columns)
        ]
        groups = _groups_that_fit(widths, table.num_keys, _DENSE_GAP, options.max_width)
        for number, places in enumerate(groups):
            if number:
                yield Text()
            columns = [table.columns[place] for place in places]
            is_narrow = sum(widths[place] + _DENSE_GAP for place in places) > options.max_width
            yield _framed(
                table,
                columns,
                is_whole=True,
                breaks_words=is_narrow,
                box=box.SIMPLE_HEAD,
                show_edge=False,
                padding=0,
            )


@dataclass(frozen=True)
class FittedTable:
    """A table that omits optional columns until it fits, or else goes on below."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table with as many columns as fit."""
        table, most = self.table, options.max_width
        optional = table.optional
        choices = (self._without(optional[:number]) for number in range(len(optional)))
        fitting = (columns for columns in choices if self._width(columns) <= most)
        columns = next(fitting, None) or self._without(optional)
        # A title of rich is as narrow as its table.
        if table.title:
            yield Text(table.title, style="italic")
        groups = [columns]
        if self._width(columns) > most:
            widths = [self._width([column]) - 1 - _FRAME for column in columns]
            places = _groups_that_fit(widths, max(table.num_keys, 1), _FRAME, most - _FRAME - 1)
            groups = [[columns[place] for place in group] for group in places]
        for group in groups:
            is_narrow = self._width(group) > most
            settings: dict[str, Any] = {"breaks_words": is_narrow, "expand": bool(table.widths)}
            if not (is_narrow or table.widths):
                settings["most"] = _widths_within(table, group, most - 1 - _FRAME * len(group))
            yield _framed(table, group, **settings)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Use the full width."""
        return Measurement(1, options.max_width)

    def _without(self, omitted: Sequence[str]) -> list[Column]:
        return [
            column
            for column in self.table.columns
            if not {column.name or column.heading} & {*omitted}
        ]

    def _width(self, columns: Sequence[Column]) -> int:
        """Return the width that the table needs if only text is wrapped, between words."""
        places = [place for place, column in enumerate(self.table.columns) if column in columns]
        return sum(_least_column_width(self.table, place) + _FRAME for place in places) + 1


def _widths_within(table: Table, columns: Sequence[Column], most: int) -> list[int]:
    """Return the widths of columns that together have at most `most`: the widest give way first.

    Rich would let them fall below their least widths, and cut the last columns off.
    """
    places = [place for place, column in enumerate(table.columns) if column in columns]
    least = [_least_column_width(table, place) for place in places]
    whole = [_column_width(table, place) for place in places]
    cap = next(
        (cap for cap in range(max(whole), 0, -1) if sum(_capped(least, whole, cap)) <= most), 0
    )
    widths = _capped(least, whole, cap)
    for place in reversed(range(len(widths))):
        widths[place] += widths[place] < whole[place] and sum(widths) < most
    return widths


def _capped(least: Sequence[int], whole: Sequence[int], cap: int) -> list[int]:
    return [max(low, min(high, cap)) for low, high in zip(least, whole, strict=True)]


def _column_width(table: Table, place: int) -> int:
    """Return the width of a column without breaks."""
    column = table.columns[place]
    rows = [*table.rows, table.end] if table.end else table.rows
    if column.kind.is_bar:
        return max(_BAR_WIDTH, _longest_line(column.heading))
    texts = (text_of(row.cells[place], column) for row in rows)
    return max(map(_longest_line, (column.heading, *texts)))


def _least_column_width(table: Table, place: int) -> int:
    """Return the width of a column that breaks texts between words only."""
    column = table.columns[place]
    rows = [*table.rows, table.end] if table.end else table.rows
    cells = (_least_width(row.cells[place], column) for row in rows)
    return max(_longest_line(column.heading), *cells)


def _least_width(cell: Any, column: Column) -> int:
    if column.kind.is_bar and value_of(cell) is not None:
        return _LEAST_BAR
    text = text_of(cell, column)
    if column.kind.is_number or column.kind.is_whole:
        return _longest_line(text)
    return max((cell_len(word) for word in text.split()), default=0)


def _longest_line(text: str) -> int:
    return max((cell_len(line) for line in text.splitlines()), default=0)


def _framed(
    table: Table,
    columns: Sequence[Column],
    *,
    is_whole: bool = False,
    breaks_words: bool = False,
    most: Sequence[int] = (),
    **settings: Any,
) -> RichTable:
    """Return some columns of a table in a frame.

    Args:
        table: the table.
        columns: the columns to show.
        is_whole: every text is on one line.
        breaks_words: the terminal is too narrow for the longest words of the columns.
        most: the largest width of each column; by default rich finds it.
        **settings: of rich's table.
    """
    # Without a least width, rich breaks words of a narrow column while another has room.
    has_least = not (breaks_words or table.widths)
    framed = RichTable(**settings)
    places = [place for place, column in enumerate(table.columns) if column in columns]
    for number, place in enumerate(places):
        column = table.columns[place]
        framed.add_column(
            column.heading,
            justify=_justify(column),
            no_wrap=not breaks_words
            and (is_whole or column.kind.is_number or column.kind.is_whole),
            ratio=table.widths[place] if table.widths else None,
            min_width=_least_column_width(table, place) if has_least else None,
            max_width=most[number] if most else None,
            overflow="fold",
        )
    for row in table.rows:
        framed.add_row(*_cells(table, row, places), style=_STYLES[row.style] or None)
    if table.end:
        framed.add_section()
        framed.add_row(*_cells(table, table.end, places), style=_STYLES[table.end.style] or None)
    return framed


def _cells(table: Table, row: Row, places: Sequence[int]) -> Iterator[RenderableType]:
    """Yield the cells of a row; users choose some texts, whose brackets are not markup."""
    for place in places:
        cell, column = row.cells[place], table.columns[place]
        if column.kind.is_bar and value_of(cell) is not None:
            yield ShareBar(value_of(cell))
        else:
            style = _STYLES[cell.style] if isinstance(cell, Cell) else ""
            yield Text(text_of(cell, column), style=style)


def _justify(column: Column) -> Literal["left", "right"]:
    return "right" if column.kind.is_number else "left"


@dataclass(frozen=True)
class ContinuedTable:
    """A table without a frame, split into several below one another if the terminal is narrow."""

    table: Table
    width: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw tables with as many columns as fit, at least one each, after the keys."""
        if self.table.title:
            yield Text(self.table.title, style="bold")
        widths = [self._width(place) for place in range(len(self.table.columns))]
        most = self.width or options.max_width
        groups = _groups_that_fit(widths, self.table.num_keys, _GAP, most)
        for number, places in enumerate(groups):
            if number:
                yield Text()
            is_narrow = sum(widths[place] + _GAP for place in places) > options.max_width + _GAP
            yield self._part(places, is_whole=not (self.table.num_keys or is_narrow))

    def _part(self, places: Sequence[int], *, is_whole: bool) -> RichTable:
        table = self.table
        part = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for place in places:
            column = table.columns[place]
            style = "bold" if place < table.num_keys else ""
            part.add_column(
                Text(column.heading),
                justify=_justify(column),
                style=style,
                no_wrap=is_whole,
                overflow="fold",
            )
        for row in table.rows:
            part.add_row(*_cells(table, row, places), style=_STYLES[row.style] or None)
        return part

    def _width(self, place: int) -> int:
        column = self.table.columns[place]
        texts = (text_of(row.cells[place], column) for row in self.table.rows)
        return max(cell_len(column.heading), *map(cell_len, texts), 0)


@dataclass(frozen=True)
class ShareBar:
    """A bar with a length proportional to a share of 1; all bars of a column have one scale."""

    share: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fill the share of the column's width."""
        yield Text("█" * round(options.max_width * min(self.share, 1)), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Allow a narrow column; all its bars are scaled alike."""
        return Measurement(_LEAST_BAR, _BAR_WIDTH)


def properties(rows: Iterable[tuple[str, str | Cell]]) -> RichTable:
    """Return names in bold and their values."""
    grid = RichTable.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(Text(name, style="bold"), Text(fact_text(value)))
    return grid
