"""Pages at the widths of terminals: nothing is cut, numbers keep their units, bars are in scale."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simtrain.commands import printing
from simtrain.commands.output import Output, show_view
from simtrain.render.terminal import terminal_page
from simtrain.studies.sweep.results import Answer
from simtrain.views.kinds import BAR, NUMBER, SECONDS, TEXT
from simtrain.views.sweep import answer_view
from simtrain.views.view import Column, Row, Table, View, names_view
from tests.helpers.command_line import call
from tests.views.test_render import PAGES

WIDTHS = (80, 100, 120)
COMMANDS = (
    *("run table5_22b_present", "run table5_22b_present --show memory", "reproduce table4"),
    *("run table5_22b_present --set parallelism.pipeline=4", "reproduce fig1"),
    *("cost table5_22b_present --tokens 1T", "show trn1", "show E310", "show errors"),
    "compare table5_22b_full table5_22b_present",
    "run table5_175b_present --show ops",
    "run mixtral_8x7b --show ops",
    "run table5_22b_present --show sources",
    "run table5_22b_present --show sources --figure peak_memory",
    "search gpt2_1_5b --gpus 1,2 --objective cost --top 3 --set batch.global=8",
)
_UNITS = re.compile(r"(s|ms|us|ns|GiB|MiB|%|TFLOP/s|GB/s|Gb/s|days)")


def tables(text: str) -> Iterator[list[str]]:
    """Yield the cells of each line of the body of tables."""
    for line in text.splitlines():
        if line.startswith("│"):
            yield [cell.strip() for cell in line.strip("│").split("│")]


def check(text: str, width: int) -> None:
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    alone = [cell for cells in tables(text) for cell in cells if _UNITS.fullmatch(cell)]
    assert not alone, "a number is separated from its unit"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_fits_the_terminal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "_PLAIN_WIDTH", 80)
    check(call(*shlex.split(command)).stdout, 80)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_terminal(name: str, width: int) -> None:
    check(drawn(PAGES[name](), width), width)


def drawn(view: View, width: int, continued: int | None = None) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(terminal_page(view, continued))
    return capture.get()


@given(
    sizes=st.lists(st.lists(st.integers(1, 14), min_size=3, max_size=3), min_size=2, max_size=12),
    layout=st.sampled_from(["fitted", "dense", "continued"]),
    longest=st.sampled_from([0, 150]),
)
def test_no_column_and_no_cell_is_lost_at_any_width(
    sizes: list[list[int]], layout: Any, longest: int
) -> None:
    """Words that fit stay whole, longer ones go on in the next line."""
    words = [[f"{place}{row}".ljust(size, "x") for row, size in enumerate(column)]
             for place, column in enumerate(sizes)]  # fmt: skip
    columns = [Column(column[0], column[0], TEXT) for column in words]
    rows = [Row([column[row] for column in words]) for row in (1, 2)]
    rows.append(Row(["y" * longest, *("" for _ in words[1:])]))
    rows.append(Row([" ".join(f"z{place}" for place in range(30)) for _ in words]))
    table = Table("any", "", columns, rows, layout=layout)
    for width in (40, 80, 200):
        text = drawn(View([table]), width)
        assert max(map(len, text.splitlines())) <= width
        for word in (word for column in words[1:] for word in column):
            assert word in text
        assert all(text.count(f"z{place}") >= len(words) for place in range(10, 30))
        assert text.count("y") >= longest


@pytest.mark.parametrize("width", [40, 60, 100])
def test_bars_are_in_scale_also_in_narrow_columns(width: int) -> None:
    shares = (0.25, 0.5, 1.0)
    rows = [Row((f"part {share:10}", share)) for share in shares]
    table = Table("parts", "", (Column("part", "part", TEXT), Column("", "", BAR)), rows)
    lengths = [line.count("█") for line in drawn(View([table]), width).split("\n")]
    quarter, half, whole = filter(None, lengths)
    assert abs(4 * quarter - whole) <= 3 and abs(2 * half - whole) <= 1


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_dense_table_continues_below_with_its_first_column(width: int) -> None:
    """No cell is cut: every value is whole on a line that begins with the number of its row."""
    names = ["", *(f"column {letter}" for letter in "abcdefgh")]
    rows = [Row([number, *(number * 1111.5 for _ in names[1:])]) for number in (1, 2)]
    columns = [Column(name, name, NUMBER) for name in names]
    table = Table("dense", "title", columns, rows, layout="dense", num_keys=1)
    lines = drawn(View([table]), width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.split().count("1111.5") for line in lines if line.startswith("1 ")) == 8
    assert sum(line.split().count("2223.0") for line in lines if line.startswith("2 ")) == 8


def test_a_narrow_column_breaks_no_word_while_others_have_room() -> None:
    label, text = Column("label", "label", TEXT), Column("text", "text", TEXT)
    row = Row(("exposed communication", "a text of many words that needs several lines here"))
    table = Table("words", "", (label, text), [row])
    assert "communication" in drawn(View([table]), 40)


def test_columns_are_omitted_by_priority() -> None:
    times = [Column(f"{name}_s", f"{name}\ns", SECONDS) for name in "abc"]
    rows = [Row(("first", 11.11, 22.22, 33.33))]
    columns = (Column("name", "name", TEXT), *times)
    view = View([Table("times", "", columns, rows, optional=("b_s", "c_s"))])
    shown = [[name for name in "abc" if name in drawn(view, width)] for width in (60, 35, 25)]
    assert shown == [["a", "b", "c"], ["a", "c"], ["a"]]


@pytest.mark.parametrize(("columns", "width"), [("", 120), ("60", 60), ("3", 40), ("wide", 120)])
def test_a_list_in_a_pipe_has_the_width_of_columns(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    rows = [("short", "word " * 60), ("longer", "text")]
    show_view(Output(), names_view(("name", "text"), rows))
    first, *others, last = capsys.readouterr().out.splitlines()
    assert first.startswith("short   word") and last == "longer  text"
    assert all(line.startswith("        word") for line in others)
    assert width - 5 < max(map(len, [first, *others])) <= width


def test_columns_of_an_answer_beyond_the_terminal_follow_below() -> None:
    names = tuple(f"a_long_name_{number:02}" for number in range(12))
    view = answer_view(Answer(names, (tuple(range(12)), tuple(range(100, 112)))))
    check(text := drawn(view, 1000, continued=80), 80)
    assert text.split() == [
        word
        for first in (0, 5, 10)
        for row in (names, range(12), range(100, 112))
        for word in map(str, row[first : first + 5])
    ]
