"""Views: what a result says, part by part, with every number in full precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from simtrain.base.plain_data import attribute, json_fields
from simtrain.base.values import dataclass
from simtrain.views.kinds import TEXT, Kind

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.schedules import Schedule

Style = Literal["strong", "soft", "bad"]
"""A row that sums up others, matters less, or breaks a limit."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with another text than its column's kind gives it."""

    value: Any
    text: str
    style: Style | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        name: the key of its values in CSV, with their unit; "" if only people need it.
        heading: what people read above it.
        kind: how its values read.
        meaning: what its values are, if the heading does not say it.
    """

    name: str
    heading: str
    kind: Kind
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Args:
        cells: one value or `Cell` for each column.
        entry: the entry of a hardware profile that the row is about; columns of kind `ENTRY` lead
            to it.
    """

    cells: Sequence[Any]
    style: Style | None = None
    entry: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of typed columns.

    Args:
        name: what `--table` calls it.
        title: text above it.
        rows: each with a cell for each column.
        end: a closing row, set apart.
        optional: names or headings of columns that a narrow medium omits, the least important
            first.
        layout: "fitted" draws a frame, "dense" as little as possible. "list" has names and a text.
        num_keys: first columns that a table repeats where it goes on below.
        widths: relative widths of the columns of a table as wide as the medium; by default each
            column is as wide as its texts need.
        data: CSV's rows, in full precision, if people see fewer rows, or rows as columns.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    end: Row | None = None
    optional: Sequence[str] = ()
    layout: Literal["fitted", "dense", "list"] = "fitted"
    num_keys: int = 0
    widths: Sequence[int] = ()
    data: Sequence[Mapping[str, Any]] | None = None

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as values by the names of their columns, in full precision."""
        if self.data is not None:
            return [dict(record) for record in self.data]
        return [
            {
                column.name: value_of(cell)
                for column, cell in zip(self.columns, row.cells, strict=True)
                if column.name
            }
            for row in self.rows
        ]


def rows_of(
    columns: Iterable[Column], values: Iterable[Any], **computed: Callable[[Any], object]
) -> list[Row]:
    """Return a row for each value: what `data_of` returns for the names of the columns."""
    records = data_of([column.name for column in columns], values, **computed)
    return [Row([*record.values()]) for record in records]


def data_of(
    names: Sequence[str], values: Iterable[Any], **computed: Callable[[Any], object]
) -> list[dict[str, Any]]:
    """Return rows for CSV: what JSON has of each value by these names, or a function of it."""
    return [
        {
            name: computed[name](value)
            if name in computed
            else attribute(value, json_fields(type(value)).get(name, name))
            for name in names
        }
        for value in values
    ]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what is said of each, one a line; a `Cell` has the exact value of its text."""

    rows: Sequence[tuple[str, str | Cell]]


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows; a rule sets apart the pages of several results."""

    text: str
    is_rule: bool = False


@dataclass(frozen=True, slots=True)
class Paragraphs:
    """Plain sentences, or remarks in softer letters. A `Sentence` knows its numbers."""

    texts: Sequence[str]
    style: Style | None = "soft"


@dataclass(frozen=True, slots=True)
class Branch:
    """A tree: a name, what is said of it (a `Sentence` knows its numbers), and its parts."""

    name: str
    text: str = ""
    parts: Sequence[Branch] = ()
    is_soft: bool = False


Tone = Literal["good", "doubt", "bad", "plain"]


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer in one line: a page begins with it, and a long one also ends with it."""

    text: str
    tone: Tone = "plain"


def verdict(is_ok: bool, words: str, failure: str = "FAILED", doubt: str = "") -> Headline:
    """Return a headline that says OK, a failure by its name, or a doubt."""
    tone: Tone = "bad" if not is_ok else "doubt" if doubt else "good"
    return Headline(f"{failure if not is_ok else doubt or 'OK'}: {words}", tone)


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """What each stage does over time."""

    result: Result


@dataclass(frozen=True, slots=True)
class SchedulePicture:
    """The order of a schedule: a row per stage, a column per slot."""

    schedule: Schedule


Part = Facts | Table | Heading | Paragraphs | Branch | Headline | TimelinePicture | SchedulePicture


@dataclass(frozen=True, slots=True)
class View:
    """What a result says, in order."""

    parts: Sequence[Part]

    @property
    def shown(self) -> Iterator[Part]:
        """The parts between the headlines. A list of remarks or a framed table may be empty."""
        headline = self.headline
        for part in self.parts:
            if part is headline:
                continue
            if isinstance(part, Paragraphs) and not part.texts:
                continue
            if isinstance(part, Table) and part.layout == "fitted" and not part.rows:
                continue
            yield part

    @property
    def headline(self) -> Headline | None:
        """The last headline: a view may join several results, and sum them up."""
        return next((part for part in reversed(self.parts) if isinstance(part, Headline)), None)

    @property
    def tables(self) -> dict[str, Table]:
        return {part.name: part for part in self.parts if isinstance(part, Table)}

    @property
    def sentences(self) -> list[str]:
        texts = (part.texts for part in self.parts if isinstance(part, Paragraphs))
        return [text for group in texts for text in group]


def fact_text(fact: str | Cell) -> str:
    """Return the text of a fact."""
    return fact.text if isinstance(fact, Cell) else fact


def text_of(cell: Any, column: Column) -> str:
    """Return the text of a cell."""
    if isinstance(cell, Cell):
        return cell.text
    return "" if cell is None else column.kind.text(cell)


def value_of(cell: Any) -> Any:
    """Return the value of a cell, in full precision."""
    return cell.value if isinstance(cell, Cell) else cell


def remarks(texts: Iterable[str]) -> Paragraphs:
    """Return remarks, in softer letters."""
    return Paragraphs([*texts])


def names_view(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> View:
    """A list of names, each with what is said of it; the last column is a text."""
    headings = [Column(name, name, TEXT) for name in columns]
    return View([Table("names", "", headings, [*map(Row, rows)], layout="list")])
