"""Views as Markdown, as people read them, and their tables as comma-separated values."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Iterator
from typing import Any

from simtrain.errors import printable
from simtrain.views.view import (
    Branch,
    Facts,
    Heading,
    Headline,
    Paragraphs,
    Row,
    Table,
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
    return " ".join(text.replace("|", "\\|").replace("-\n", "").split())


@functools.singledispatch
def _written(part: Any) -> str:
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
def _(part: Headline) -> str:
    return f"**{part.text}**"


def csv_text(table: Table) -> str:
    """Return a line for each row, below the names of the columns. Missing values are empty."""
    records = table.records()
    names = [*records[0]] if records else [column.name for column in table.columns if column.name]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_value(record.get(name)) for name in names] for record in records)
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    """Format a value as JSON (true, [1, 2]); text and null stay, without control characters."""
    if value is None:
        return value
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
