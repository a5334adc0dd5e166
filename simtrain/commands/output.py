"""How a command prints its result: a page for people, JSON, CSV or Markdown; and its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from simtrain.base.values import dataclass
from simtrain.commands.declare import Option
from simtrain.commands.options import refuse
from simtrain.commands.printing import emit, emit_data, print_page
from simtrain.errors import InputError, Location, did_you_mean

if TYPE_CHECKING:
    from simtrain.base.plain_data import PlainData
    from simtrain.studies.answer import Answer
    from simtrain.views.view import View

PAGES = (".html", ".htm")
Format = Literal["table", "json", "csv", "md"]


@dataclass(frozen=True, slots=True)
class Output:
    """The format of a result.

    Args:
        format: page for people (table), everything as JSON, one table as CSV, or Markdown. Numbers
            of JSON and CSV have full precision.
        table: table of --format csv or md. Default: the first for csv, all for md. A wrong name
            lists the right ones.

    Raises:
        InputError: a table of a format that has none (E908).
    """

    format: Format = "table"
    table: Annotated[str | None, Option(metavar="NAME")] = None

    def __post_init__(self) -> None:
        if self.format not in ("csv", "md"):
            refuse({"--table": self.table}, "is for --format csv and md", "add --format csv")

    @property
    def written(self) -> dict[str, object]:
        """What the user wrote, by the names of options."""
        return {"--format": self.format != "table", "--table": self.table}


def show(
    output: Output,
    data: PlainData | dict[str, Any],
    view: Callable[[], View],
    cluster: str | Sequence[str] | None = None,
) -> None:
    """Print a result in the format that was asked for.

    Args:
        output: the format.
        data: the values that JSON has.
        view: builds the view, for all other formats; errors are those of `show_view`.
        cluster: hardware profiles of the result, which JSON names with their hash.
    """
    if output.format == "json":
        show_json(data if isinstance(data, dict) else data.to_dict(), cluster)
    else:
        show_view(output, view())


def show_answer(output: Output, answer: Answer, **choices: object) -> None:
    """Print the answer of a study; `choices` are those of its view."""
    show(output, answer, partial(answer.view, **choices), answer.made_on)


def show_json(data: dict[str, Any], cluster: str | Sequence[str] | None = None) -> None:
    """Print JSON data with the version of their schema, and the hash of these profiles."""
    from simtrain.studies.answer import json_text

    emit_data(json_text(data, cluster))


def show_view(output: Output, view: View) -> None:
    """Print a view as a page, CSV or Markdown; as JSON, its tables.

    If it has no table of the name, it is an `InputError` (E119).
    """
    if output.format == "csv":
        from simtrain.render.plain_text import csv_text

        emit_data(csv_text(_table(output, view)))
    elif output.format == "md":
        from simtrain.render.plain_text import markdown_table, markdown_text

        only = output.table and markdown_table(_table(output, view)) + "\n"
        emit(only or markdown_text(view))
    elif output.format == "json":
        show_json({name: table.records() for name, table in view.tables.items()})
    else:
        from simtrain.render.terminal import terminal_page

        print_page(terminal_page(view))


def _table(output: Output, view: View) -> Any:
    """Return the table that was asked for, by default the first."""
    tables = view.tables
    name = output.table or next(iter(tables), "")
    if name in tables:
        return tables[name]
    if not tables:
        message, fix = "this result has no table", "write --format json, or md without --table"
        raise InputError.of("E119", message, Location("--format csv"), fix)
    message = f'there is no table "{name}"'
    fix = f"{did_you_mean(name, tables)}the tables are: {', '.join(tables)}"
    raise InputError.of("E119", message, Location("--table"), fix)


def check_file(file: Path) -> None:
    """Check that a page can be written, before the work that it needs (else E117 or E113)."""
    from simtrain.base.output_folder import check_suffix, check_writable

    check_suffix(file, PAGES, "such answers")
    check_writable(file, "it")
