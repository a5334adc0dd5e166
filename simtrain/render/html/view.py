"""Renders views as HTML. Each number keeps its exact value, and names what prints it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from simtrain.base.plain_data import Sentence
from simtrain.render.html.elements import Html, breakable, element, joined, number, scroll_box
from simtrain.render.html.timeline import timeline_figure
from simtrain.schedules import actions_of, time_slots
from simtrain.views.view import (
    Branch,
    Cell,
    Column,
    Facts,
    Heading,
    Headline,
    Paragraphs,
    Row,
    SchedulePicture,
    Style,
    Table,
    TimelinePicture,
    View,
    text_of,
    value_of,
)

_LONG_WORD = 20
"""Longer words, such as names and paths, may be broken: a table would be wider than the screen."""


def view_html(view: View, command: str = "", scope: str = "") -> Html:
    """Return the parts of a view.

    Args:
        view: the view.
        command: the command that prints the view; a selected number names it. "" if none does.
        scope: prefix of the ids of profile entries, if a page shows several profiles.
    """
    parts = joined(*(part_html(part, scope) for part in view.shown))
    if not command:
        return element("div", parts)
    note = element("p", "The same in a terminal: ", element("code", command), class_="command")
    return printed_by(command, joined(parts, note))


def printed_by(command: str, content: Html) -> Html:
    """Return content whose numbers a command prints."""
    return element("div", content, data_command=command)


@functools.singledispatch
def part_html(part: Any, scope: str) -> Html:
    """Return a part of a view."""
    raise TypeError(f"{type(part).__name__} is not a part of a view")


@part_html.register
def _(part: Facts, scope: str) -> Html:
    rows = (
        joined(element("dt", name), element("dd", _fact(value), data_meaning=name))
        for name, value in part.rows
    )
    return element("dl", *rows, class_="facts")


def _fact(fact: str | Cell) -> Html:
    return number(fact.value, fact.text) if isinstance(fact, Cell) else sentence_html(fact)


@part_html.register
def _(part: Heading, scope: str) -> Html:
    return element("h3", part.text)


@part_html.register
def _(part: Paragraphs, scope: str) -> Html:
    return joined(*(element("p", sentence_html(text), **_class(part.style)) for text in part.texts))


def sentence_html(text: str) -> Html:
    """Return text with the numbers that it knows."""
    words: list[str] = []
    end = 0
    for start, exact in text.numbers if isinstance(text, Sentence) else ():
        words += [text[end:start], number(exact.value, exact.text)]
        end = start + len(exact.text)
    return joined(*words, str(text)[end:])


@part_html.register
def _(part: Branch, scope: str) -> Html:
    words = element("strong", part.name), sentence_html(part.text)
    children = (_leaf(branch) for branch in part.parts)
    return element("details", element("summary", *words), element("ul", *children))


def _leaf(branch: Branch) -> Html:
    words = joined(element("strong", branch.name), sentence_html(branch.text))
    text = element("span", words, **_class("soft" if branch.is_soft else None))
    return element("li", text, element("ul", *map(_leaf, branch.parts)) if branch.parts else "")


@part_html.register
def _(part: Headline, scope: str) -> Html:
    return element("p", element("strong", part.text, class_=part.tone))


@part_html.register
def _(part: TimelinePicture, scope: str) -> Html:
    return timeline_figure(part.result)


@part_html.register
def _(part: SchedulePicture, scope: str) -> Html:
    """Return a row for each stage and a column for each time slot."""
    schedule, slots = part.schedule, time_slots(part.schedule).tolist()
    rows = []
    for rank in range(schedule.num_stages):
        places = range(*schedule.rank_starts[rank : rank + 2].tolist())
        names = {
            slots[place]: "&".join(map(str, actions_of(schedule.cell_at(place))))
            for place in places
        }
        cells = (element("td", names.get(slot, "")) for slot in range(max(slots) + 1))
        rows.append(element("tr", element("th", f"{rank}", scope="row"), *cells))
    return scroll_box(element("table", *rows), "Schedule")


@part_html.register
def _(part: Table, scope: str) -> Html:
    has_headings = any(column.heading for column in part.columns)
    head = element("thead", element("tr", *map(_heading, part.columns))) if has_headings else ""
    body = element("tbody", *(_row(row, part.columns, scope) for row in part.rows))
    foot = element("tfoot", _row(part.end, part.columns, scope)) if part.end else ""
    caption = element("caption", element("span", part.title)) if part.title else ""
    table = element("table", caption, head, body, foot, data_table=part.name)
    return scroll_box(table, part.title or part.name)


def _heading(column: Column) -> Html:
    text = " ".join(column.heading.replace("-\n", "").split())
    meaning = {"data_meaning": column.meaning, "title": column.meaning} if column.meaning else {}
    name = {"data_name": column.name} if column.name else {}
    return element("th", text, scope="col", class_=_alignment(column), **name, **meaning)


def _alignment(column: Column) -> str:
    return "number" if column.kind.is_number else "shares" if column.kind.is_bar else "text"


def _row(row: Row, columns: Sequence[Column], scope: str) -> Html:
    anchor = {"id": f"entry-{scope}{row.entry}"} if row.entry else {}
    (first, name), *others = zip(row.cells, columns, strict=True)
    head = element("th", _cell(first, name, scope), scope="row", class_=_alignment(name))
    cells = (
        element("td", _cell(cell, column, scope), class_=_alignment(column))
        for cell, column in others
    )
    return element("tr", head, *cells, **anchor, **_class(row.style))


def _class(style: Style | None) -> dict[str, str]:
    return {"class_": style} if style else {}


def _cell(cell: Any, column: Column, scope: str) -> Html:
    value, text = value_of(cell), text_of(cell, column).strip()
    if column.kind.is_bar:
        return Html() if value is None else _bar(value)
    if column.kind.is_entry and value:
        return element("a", breakable(text), href=f"#entry-{scope}{value}", class_="entry")
    is_long = isinstance(value, str) and max(map(len, text.split()), default=0) > _LONG_WORD
    shown = breakable(text) if is_long else number(value, text) if text else Html()
    if column.kind.is_change and value:
        return joined(_change(value), shown)
    style = cell.style if isinstance(cell, Cell) else None
    return element("span", shown, class_=style) if style else shown


def _bar(share: float) -> Html:
    """Return a bar of a share of 1. All bars of a column have one scale."""
    width = f"width:{100 * min(share, 1):.3f}%"
    return element("div", style=width, class_="share", aria_hidden="true")


def _change(share: float) -> Html:
    """Return a bar from the middle to the left for less, and to the right for more."""
    width = f"width:{100 * min(abs(share), 0.5):.3f}%"
    bar = element("span", class_="less" if share < 0 else "more", style=width)
    return element("span", bar, class_="change", aria_hidden="true")
