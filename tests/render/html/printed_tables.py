"""Functions that read the tables of a page, and compare them with what commands print."""

import csv
import io
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser

from tests.helpers.command_line import call
from tests.render.html.pages import EMPTY

_FOUR_DIGITS = {
    **{"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9},
    **{"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
_UNITS = {
    **_FOUR_DIGITS,
    **{"": 1, "×": 1, "%": 0.01},
    **{"GB/s": 1e9, "TB/s": 1e12, "TFLOP": 1e12, "TFLOP/s": 1e12, "k": 1e3, "M": 1e6},
}
Number = tuple[float, str]
"""The exact value of a number, and its text."""


@dataclass
class PrintedTable:
    """A table of a page: the command that prints it, and the numbers of its named columns."""

    command: str
    name: str
    columns: list[str] = field(default_factory=list)
    numbers: dict[str, list[Number]] = field(default_factory=dict)


@dataclass
class TableReader(HTMLParser):
    """Parser that collects tables, and all numbers of a page."""

    tables: list[PrintedTable] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    _open: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    _cell: int = -1

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        if tag == "table" and "data-table" in about:
            commands = [outer["data-command"] for _, outer in self._open if "data-command" in outer]
            self.tables.append(PrintedTable((commands or [""])[-1], about["data-table"]))
        elif tag == "tr":
            self._cell = -1
        elif tag in ("th", "td"):
            self._cell += 1
            if any(outer == "thead" for outer, _ in self._open) and self._is_in_table():
                self.tables[-1].columns.append(about.get("data-name", ""))
        if tag not in EMPTY:
            self._open.append((tag, about))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1][0] != "data":
            return
        number = float(self._open[-1][1]["value"]), data
        self.numbers.append(number)
        is_in_body = any(tag == "tbody" for tag, _ in self._open)
        # Rows that sum up others are not printed as CSV.
        sums = any(
            tag == "tr" and about.get("class") in ("strong", "soft") for tag, about in self._open
        )
        is_printed = self._is_in_table() and is_in_body and not sums
        if is_printed and self._cell < len(self.tables[-1].columns):
            name = self.tables[-1].columns[self._cell]
            self.tables[-1].numbers.setdefault(name, []).append(number)

    def _is_in_table(self) -> bool:
        return any("data-table" in about for _, about in self._open)


def read_tables(text: str) -> TableReader:
    """Read the tables and the numbers of a page."""
    reader = TableReader()
    reader.feed(text)
    reader.close()
    return reader


def wrong_numbers(reader: TableReader, printed: Callable[[str, str], str]) -> list[str]:
    """Return a line for each number that is badly rounded or that its command does not print.

    Args:
        reader: the page.
        printed: returns the CSV that a command prints of the table of a name.
    """
    wrong = [f"not rounded: {number}" for number in reader.numbers if not is_rounded(*number)]
    for table in reader.tables:
        if not table.command:
            continue
        rows = [*csv.DictReader(io.StringIO(printed(table.command, table.name)))]
        for column, numbers in table.numbers.items():
            if column:
                exact = {_float(row[column]) for row in rows if column in row}
                missing = [number for number in numbers if number[0] not in exact]
                wrong += [f"{table.command} {table.name} {column}: {number}" for number in missing]
    return wrong


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def printed_csv(command: str, name: str) -> str:
    """Run a command of a page with `--format csv --table NAME`."""
    program, *words = shlex.split(command)
    assert program == "simtrain"
    outcome = call(*words, "--format=csv", "--table", name)
    does_not_fit = outcome.exit_code == 3 and "memory" in words
    assert outcome.exit_code == 0 or does_not_fit, outcome.stderr
    return outcome.stdout


def is_rounded(value: float, text: str) -> bool:
    """Return whether a text is a value, correctly rounded.

    Columns of memory and of a layer's times have their unit, GiB or ms, in the heading.
    """
    parts = re.fullmatch(r"([+−-]?)([\d,]+(?:\.(\d+))?)(?:e([+-]?\d+))?\s*([A-Za-zµ×%/]*).*", text)
    if not parts:
        return text == "none" and abs(value) < 1e-9
    unit = parts.group(5)
    scales = (1, 2**30) if not unit else (_UNITS.get(unit, 1),)
    return any(_is_rounded(value, parts, scale) for scale in scales)


def _is_rounded(value: float, parts: re.Match[str], scale: float) -> bool:
    sign, digits, decimals, power, unit = parts.groups()
    last = scale * 10.0 ** (int(power or 0) - len(decimals or ""))
    shown = float(digits.replace(",", "") + f"e{power or 0}") * scale
    exact = value if sign else abs(value)
    shown = -shown if sign in ("-", "−") else shown
    # Times and bytes have four significant digits, without trailing zeros.
    most = 5e-4 * abs(exact) if unit in _FOUR_DIGITS and abs(exact) >= 1e-12 else 0.5 * last
    return shown == exact or abs(shown - exact) <= min(most, 0.5 * last) * (1 + 1e-9)
