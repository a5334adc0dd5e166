"""How a command prints its result: a page for people, JSON, CSV or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.commands.declare import Fields
from simtrain.commands.shared import (
    JsonOption,
    emit,
    emit_data,
    print_page,
    refuse,
    show_json,
    text_width,
)
from simtrain.errors import InputError, Location, did_you_mean

if TYPE_CHECKING:
    from simtrain.base.plain_data import PlainData
    from simtrain.views.view import View

CsvOption = Annotated[
    bool, typer.Option("--csv", help="Print a table as CSV in full precision, see --table.")
]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
TableOption = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="Table of --csv or --markdown. Default: the first for --csv, all for --markdown. "
        "A wrong name lists the right ones.",
        metavar="NAME",
    ),
]


@dataclass(frozen=True, slots=True)
class Output:
    """The format of a result: JSON, CSV, Markdown, or by default a page for people.

    Args:
        as_json: print JSON.
        as_csv: print a table as CSV.
        as_markdown: print Markdown.
        table: name of the table of CSV or Markdown.

    Raises:
        InputError: several formats, or a table without a format that has tables (E908).
    """

    as_json: JsonOption = False
    as_csv: CsvOption = False
    as_markdown: MarkdownOption = False
    table: TableOption = None

    def __post_init__(self) -> None:
        formats = {"--json": self.as_json, "--csv": self.as_csv, "--markdown": self.as_markdown}
        first, *others = [name for name, is_chosen in formats.items() if is_chosen] or [""]
        if first:
            refuse(
                {name: name in others for name in formats},
                f"has no effect with {first}",
                f"remove {first} or {' or '.join(others)}",
            )
        if not (self.as_csv or self.as_markdown):
            refuse({"--table": self.table}, "is for --csv and --markdown", "add --csv")


ListOutput = Annotated[Output, Fields(Output, "as_csv as_markdown")]
"""The format of a list of names."""


def show(
    output: Output,
    data: PlainData | dict[str, Any],
    view: Callable[[], View],
    cluster: str | Sequence[str] | None = None,
    width: int | None = None,
) -> None:
    """Print a result in the format that was asked for.

    Args:
        output: the format.
        data: the values that JSON has.
        view: builds the view, for all other formats.
        cluster: hardware profiles of the result, which JSON names with their hash.
        width: as in `show_view`.

    Raises:
        InputError: the view has no table of the name (E119).
    """
    if output.as_json:
        show_json(data if isinstance(data, dict) else data.to_dict(), cluster)
    else:
        show_view(output, view(), width)


def show_view(output: Output, view: View, width: int | None = None) -> None:
    """Print a view as a page, CSV or Markdown.

    Args:
        output: the format.
        view: the view.
        width: the page's columns; by default as many as the terminal has.

    Raises:
        InputError: the view has no table of the name (E119).
    """
    if output.as_csv:
        from simtrain.render.comma_separated import csv_text

        emit_data(csv_text(_table(output, view)))
    elif output.as_markdown:
        from simtrain.render.markdown import markdown_table, markdown_text

        only = output.table and markdown_table(_table(output, view)) + "\n"
        emit(only or markdown_text(view))
    else:
        from simtrain.render.terminal import terminal_page

        print_page(terminal_page(view, text_width()), width)


def _table(output: Output, view: View) -> Any:
    """Return the table that was asked for, by default the first."""
    tables = view.tables
    name = output.table or next(iter(tables), "")
    if name in tables:
        return tables[name]
    if not tables:
        message, fix = "this result has no table", "write --json, or --markdown without --table"
        raise InputError.of("E119", message, Location("--csv"), fix)
    message = f'there is no table "{name}"'
    fix = f"{did_you_mean(name, tables)}the tables are: {', '.join(tables)}"
    raise InputError.of("E119", message, Location("--table"), fix)
