"""Draws a view in a terminal."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree

from simtrain.base.values import dataclass
from simtrain.views.view import (
    Branch,
    Cell,
    Column,
    Facts,
    Heading,
    Headline,
    Paragraphs,
    Part,
    Row,
    SchedulePicture,
    Table,
    TimelinePicture,
    View,
    fact_text,
    text_of,
    value_of,
)

_STYLES = {"strong": "bold", "soft": "dim", "bad": "red", None: ""}
_COLOURS = {"good": "green", "doubt": "yellow", "bad": "red", "plain": ""}
_BAR_WIDTH, _LEAST_BAR = 30, 8
_LONG_PAGE = 10
"""Lines from which on a page also ends with its headline."""


@dataclass(frozen=True)
class _HeadedPage:
    """A page between its headlines: one of many lines shows the answer at both ends."""

    headline: Headline
    body: Group

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.body, options, pad=False)
        yield _drawn(self.headline)
        if lines:
            yield Text()
        for line in lines:
            yield from line
            yield Segment.line()
        if len(lines) >= _LONG_PAGE:
            yield from (Text(), _drawn(self.headline))


def terminal_page(view: View) -> RenderableType:
    """Return a view as a page of rich. An empty line sets off tables, facts, trees and pictures."""
    drawn: list[RenderableType] = []
    before: Part | None = None
    for part in view.shown:
        if before is not None and (_stands_apart(before) or _stands_apart(part)):
            drawn.append("")
        drawn.append(_drawn(part))
        before = part
    body = Group(*drawn)
    return _HeadedPage(view.headline, body) if view.headline else body


def _stands_apart(part: Part) -> bool:
    # A timeline ends with its own empty line, because files and pipes get none.
    return not isinstance(part, Paragraphs | Headline | Heading | TimelinePicture)


@functools.singledispatch
def _drawn(part: Any) -> RenderableType:
    raise TypeError(f"{type(part).__name__} is not a part of a view")


@_drawn.register
def _(part: Facts) -> RenderableType:
    return properties(part.rows)


@_drawn.register
def _(part: Heading) -> RenderableType:
    if part.is_rule:
        return Rule(Text(part.text), align="left", style="dim")
    return Text(part.text, style="bold")


@_drawn.register
def _(part: Paragraphs) -> RenderableType:
    return Group(*(Text(text, style=_STYLES[part.style]) for text in part.texts))


@_drawn.register
def _(part: Branch) -> RenderableType:
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
def _(part: Headline) -> RenderableType:
    return Text(part.text, f"bold {_COLOURS[part.tone]}")


@_drawn.register
def _(part: TimelinePicture) -> RenderableType:
    from simtrain.render.terminal_pictures import TimelineStrip

    return TimelineStrip(part.result)


@_drawn.register
def _(part: SchedulePicture) -> RenderableType:
    from simtrain.render.terminal_pictures import ScheduleGrid

    return ScheduleGrid(part.schedule)


@_drawn.register
def _(part: Table) -> RenderableType:
    return _list(part) if part.layout == "list" else DrawnTable(part)


def _list(table: Table) -> NamedTexts:
    columns = table.columns
    rows = [
        [Text(text_of(cell, column)) for cell, column in zip(row.cells, columns, strict=True)]
        for row in table.rows
    ]
    return NamedTexts(rows, [_justify(column) for column in columns])


def properties(rows: Iterable[tuple[str, str | Cell]]) -> NamedTexts:
    """Return names in bold and their values."""
    texts = [[Text(name, style="bold"), Text(fact_text(value))] for name, value in rows]
    return NamedTexts(texts, ["left", "left"])


@dataclass(frozen=True)
class NamedTexts:
    """Names and a text beside them, or below them if the names leave the text too little room."""

    rows: Sequence[Sequence[Text]]
    justify: Sequence[Literal["left", "right"]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [
            max(map(cell_len, map(str, column))) for column in [*zip(*self.rows, strict=True)][:-1]
        ]
        if 2 * sum(name + 2 for name in names) > options.max_width:
            for *words, text in self.rows:
                yield from (Text("  ").join(words), Padding(text, (0, 0, 0, 2)))
            return
        grid = RichTable.grid(padding=(0, 2, 0, 0))
        for justify, width in zip(self.justify, [*names, None], strict=True):
            grid.add_column(justify=justify, overflow="fold", width=width)
        for row in self.rows:
            grid.add_row(*row)
        yield grid


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
class _Look:
    """How tables of a layout look: columns of the terminal between theirs, and at the edge."""

    gap: int
    edge: int
    title: str
    settings: Mapping[str, Any]


_LOOKS = {
    "fitted": _Look(3, 1, "italic", {}),  # padding on both sides of a column, and a line
    "dense": _Look(1, -1, "bold", {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": 0}),
}


@dataclass(frozen=True)
class DrawnTable:
    """A table that omits optional columns until it fits, or else goes on below with the others."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, look, most = self.table, _LOOKS[self.table.layout], options.max_width
        # A title of rich is as narrow as its table.
        if table.title:
            yield Text(table.title, style=look.title)
        is_dense = table.layout == "dense"
        for number, places in enumerate(self._groups(most)):
            if number and is_dense:
                yield Text()
            is_narrow = self._width(places) > most
            settings: dict[str, Any] = {"expand": bool(table.widths), **look.settings}
            if not (is_narrow or table.widths or is_dense):
                settings["most"] = _widths_within(table, places, most - 1 - 3 * len(places))
            is_whole = is_dense and not is_narrow
            yield _framed(table, places, is_whole=is_whole, breaks_words=is_narrow, **settings)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)

    def _groups(self, most: int) -> Iterator[list[int]]:
        """Yield the columns that fit; if too many are left without the optional ones, in groups."""
        table, look, kept = self.table, _LOOKS[self.table.layout], list[int]()
        for number in range(len(table.optional) + 1):
            omitted = {*table.optional[:number]}
            kept = [
                place
                for place, column in enumerate(table.columns)
                if (column.name or column.heading) not in omitted
            ]
            if self._width(kept) <= most:
                yield kept
                return
        widths = [self._column_width(place) for place in kept]
        num_keys = max(table.num_keys, table.layout == "fitted")
        for group in _groups_that_fit(widths, num_keys, look.gap, most - look.edge - look.gap):
            yield [kept[place] for place in group]

    def _width(self, places: Sequence[int]) -> int:
        look = _LOOKS[self.table.layout]
        return sum(self._column_width(place) + look.gap for place in places) + look.edge

    def _column_width(self, place: int) -> int:
        if self.table.layout == "dense":
            return _column_width(self.table, place)
        return _least_column_width(self.table, place)


def _widths_within(table: Table, places: Sequence[int], most: int) -> list[int]:
    """Return the widths of columns that together have at most `most`: the widest give way first.

    Rich would let them fall below their least widths, and cut the last columns off.
    """
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
    places: Sequence[int],
    *,
    is_whole: bool = False,
    breaks_words: bool = False,
    most: Sequence[int] = (),
    **settings: Any,
) -> RichTable:
    """Return some columns of a table.

    Args:
        table: the table.
        places: the columns to show.
        is_whole: every text is on one line.
        breaks_words: the terminal is too narrow for the longest words of the columns.
        most: the largest width of each column; by default rich finds it.
        **settings: of rich's table.
    """
    # Without a least width, rich breaks words of a narrow column while another has room.
    has_least = not (breaks_words or table.widths)
    framed = RichTable(**settings)
    for number, place in enumerate(places):
        column = table.columns[place]
        is_one_line = is_whole or column.kind.is_number or column.kind.is_whole
        framed.add_column(
            Text(column.heading),
            justify=_justify(column),
            no_wrap=not breaks_words and is_one_line,
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
class ShareBar:
    """A bar with a length proportional to a share of 1; all bars of a column have one scale."""

    share: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("█" * round(options.max_width * min(self.share, 1)), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_LEAST_BAR, _BAR_WIDTH)
