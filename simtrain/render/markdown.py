"""Views as Markdown, as people read them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from simtrain.views.view import (
    Branch,
    Facts,
    Heading,
    Paragraphs,
    Row,
    Table,
    Verdict,
    View,
    fact_text,
    text_of,
)


def markdown_text(view: View) -> str:
    """Return a view as Markdown, without pictures."""
    blocks = filter(None, map(_written, view.shown))
    return "\n\n".join(blocks) + "\n"


def markdown_table(table: Table) -> str:
    """Return a table with its title; bars are left out."""
    places = [n for n, column in enumerate(table.columns) if not column.kind.is_bar]
    columns = [table.columns[place] for place in places]
    lines = [
        _line(_escaped(column.heading) for column in columns),
        _line("---:" if column.kind.is_number else "---" for column in columns),
    ]
    rows = [*table.rows, table.end] if table.end else table.rows
    lines += [_line(_cells(table.columns, row, places)) for row in rows]
    title = [f"**{_escaped(table.title)}**", ""] if table.title else []
    return "\n".join([*title, *lines])


def _cells(columns: Any, row: Row, places: list[int]) -> Iterator[str]:
    for place in places:
        text = _escaped(text_of(row.cells[place], columns[place]).strip())
        yield f"**{text}**" if row.style == "strong" and text else text


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Return text that ends neither a cell nor a line."""
    return " ".join(text.replace("|", "\\|").replace("-\n", "").split())


@functools.singledispatch
def _written(part: Any) -> str:
    """Return a part; pictures have no text."""
    return ""


@_written.register
def _(part: Table) -> str:
    return markdown_table(part)


@_written.register
def _(part: Facts) -> str:
    return "\n".join(f"- **{name}**: {fact_text(value)}" for name, value in part.rows)


@_written.register
def _(part: Heading) -> str:
    return f"## {part.text.strip()}"


@_written.register
def _(part: Paragraphs) -> str:
    return "\n\n".join(part.texts)


@_written.register
def _(part: Branch) -> str:
    return "\n".join(_branch_lines(part, 0))


def _branch_lines(branch: Branch, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}- **{branch.name}**{branch.text}"
    for part in branch.parts:
        yield from _branch_lines(part, depth + 1)


@_written.register
def _(part: Verdict) -> str:
    return f"**{part.text}**"
