"""Pages at the widths of terminals: nothing is cut, numbers keep their units, bars are in scale."""

import itertools
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from simtrain.render import terminal
from simtrain.render.terminal import terminal_page
from simtrain.views.kinds import BAR, NUMBER, SECONDS, TEXT
from simtrain.views.view import Column, Row, Table, View
from tests.helpers.command_line import call
from tests.helpers.sweep_files import SMALL

WIDTHS = (40, 80, 200)
ANSWERS = (
    "run table5_22b_present --set parallelism.pipeline=4",
    "run mixtral_8x7b --show ops",
    "compare gpt2_1_5b",
    "compare table5_22b_present --schedules",
    "cost table5_22b_present --tokens 1T --details",
    "search gpt2_1_5b --gpus 1,2 --tokens 1B",
)
OF_FILES = (
    "sweep sweep.yaml -o results --workers 1",
    "sweep results --query 'select * from results order by tokens_per_s desc'",
    "validate runs.csv --cluster h100_sxm",
)
"""Answers for files, in this order; the first writes what the second reads."""
LISTS = "show", "show profiles", "run gpt2_1_5b --show settings"
LONG_PAGE = 10
"""Lines from which on a page ends with its answer too."""
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
    assert width < WIDTHS[1] or not alone, "a number is separated from its unit"


def view_of(command: str, monkeypatch: pytest.MonkeyPatch) -> View:
    """Return the view that a command prints."""
    views, draw = list[View](), terminal.terminal_page

    def record(view: View) -> Any:
        views.append(view)
        return draw(view)

    monkeypatch.setattr(terminal, "terminal_page", record)
    call(*shlex.split(command))
    (view,) = views
    return view


def test_answers_for_files_fit_every_terminal(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep.yaml").write_text(SMALL, "utf-8")
    names = "layers", "hidden", "heads", "seq", "global_batch", "gpus", "tp", "iteration_s"
    runs = ",".join(names), "32,4096,32,4096,64,8,8,9.5", "32,4096,32,4096,64,8,4,x"
    (tmp_path / "runs.csv").write_text("\n".join(runs), "utf-8")
    monkeypatch.chdir(tmp_path)
    for view in [view_of(command, monkeypatch) for command in OF_FILES]:
        for width in WIDTHS:
            check(drawn(view, width), width)


@pytest.mark.parametrize("command", [*ANSWERS, *LISTS])
def test_a_command_fits_every_terminal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer begins and ends with its line; a short one has it once, and a list none."""
    view = view_of(command, monkeypatch)
    assert (view.headline is None) is (command in LISTS)
    for width in WIDTHS:
        text = drawn(view, width)
        check(text, width)
        if view.headline:
            line, body = drawn(View([view.headline]), width), drawn(View([*view.shown]), width)
            is_long = len(body.splitlines()) >= LONG_PAGE
            assert text == f"{line}\n{body}" + is_long * f"\n{line}"


def drawn(view: View, width: int) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(terminal_page(view))
    return capture.get()


@settings(max_examples=15)
@given(
    sizes=st.lists(st.lists(st.integers(1, 14), min_size=3, max_size=3), min_size=2, max_size=12),
    layout=st.sampled_from(["fitted", "dense"]),
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
    """A share above 1 fills its column, and a missing one is empty."""
    shares = (0.25, 0.5, 1.0, 1.5, None)
    rows = [Row((f"part {share!s:10}", share)) for share in shares]
    table = Table("parts", "", (Column("part", "part", TEXT), Column("", "", BAR)), rows)
    lines = [line for line in drawn(View([table]), width).split("\n") if "part " in line]
    quarter, half, whole, more, none = (line.count("█") for line in lines[-5:])
    assert abs(4 * quarter - whole) <= 3 and abs(2 * half - whole) <= 1
    assert more == whole == min(30, width - 22) and none == 0
    assert max(map(len, lines)) <= width


cells = st.lists(st.integers(1, 12).map("x".__mul__), min_size=1, max_size=8).map(" ".join)


@settings(max_examples=60)
@given(st.lists(cells, min_size=1, max_size=6), st.integers(20, 120))
def test_a_table_gives_its_room_first_to_the_columns_that_need_least(
    texts: list[str], width: int
) -> None:
    """No room is left while a text is broken, and the widest columns give way first."""
    columns = [Column(f"{place}", f"{place}", TEXT) for place in range(len(texts))]
    frame = 3 * len(texts) + 1
    least, whole = [max(map(len, text.split())) for text in texts], [*map(len, texts)]
    text = drawn(View([Table("any", "", columns, [Row(texts)])]), width)
    headings = [line.split() for line in text.splitlines() if line.startswith("┃")]
    if frame + sum(least) > width:  # the other columns follow below, beside the first one
        groups = [[int(name) for name in line if name.isdigit()] for line in headings]
        assert all(group[0] == 0 for group in groups)
        assert [place for group in groups for place in group[1:]] == [*range(1, len(texts))]
        for group, after in itertools.pairwise(groups):
            needed = [sum(least[place] + 3 for place in each) + 1 for each in (group, after[:2])]
            assert needed[0] <= width or len(group) == 2
            assert needed[0] + least[after[1]] + 3 > width
        return
    (border,) = (line for line in text.splitlines() if line.startswith("┏"))
    widths = [len(part) - 2 for part in border.strip("┏┓").split("┳")]
    assert sum(widths) + frame == min(width, sum(whole) + frame)
    assert all(low <= each <= most for low, each, most in zip(least, widths, whole, strict=True))
    broken = [each for each, most in zip(widths, whole, strict=True) if each < most]
    given_room = [each for each, low in zip(widths, least, strict=True) if each > low]
    assert not broken or max(given_room, default=0) <= min(broken) + 1


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


def test_columns_are_omitted_by_priority() -> None:
    times = [Column(f"{name}_s", f"{name}\ns", SECONDS) for name in "abc"]
    rows = [Row(("first", 11.11, 22.22, 33.33))]
    columns = (Column("name", "name", TEXT), *times)
    view = View([Table("times", "", columns, rows, optional=("b_s", "c_s"))])
    shown = [[name for name in "abc" if name in drawn(view, width)] for width in (60, 35, 25)]
    assert shown == [["a", "b", "c"], ["a", "c"], ["a"]]
