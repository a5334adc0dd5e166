"""`--format csv`, `--format md` and `--table`: every table of every command in three media."""

import csv
import io
import json
import pathlib
import shlex

import pytest

from simtrain.commands.output import Output
from simtrain.errors import InputError
from simtrain.render.plain_text import csv_text, markdown_table, markdown_text
from simtrain.views.kinds import BAR, SECONDS, TEXT
from simtrain.views.view import Cell, Column, Row, Table, View, remarks, verdict
from tests.helpers.command_line import call, commands, option_names, refused

PRINTED = {
    "run gpt2_1_5b": "breakdown peaks",
    "run gpt2_1_5b --show ops": "operators limits",
    "run gpt2_1_5b --show memory": "stages buffers",
    "cost gpt2_1_5b --tokens 1B": "costs",
    "compare table5_22b_full table5_22b_present": ("scenarios fields causes-B resources"),
    "compare gpt2_1_5b": "changes",
    "search gpt2_1_5b --gpus 2 --top 2": "layouts",
    "search gpt2_1_5b --tokens 1B --gpus 1,2": "plan",
    "reproduce fig1": "1 2",
    "show profiles": "names",
    "show trn1": "cluster gpu",
    "show scenarios": "names",
    "show": "names",
}
"""Commands and the names of tables, the first of them first."""
WITHOUT_TABLES = {"export", "import", "calibrate fit", "calibrate measure"}
"""Commands that print no table, or write a file."""


def test_every_command_that_prints_a_table_has_its_formats() -> None:
    having = {name for name in commands() if "--format" in option_names(name)}
    assert having == commands().keys() - WITHOUT_TABLES


@pytest.mark.ci
@pytest.mark.parametrize("command", PRINTED)
def test_tables_of_a_command(command: str) -> None:
    """The first table is the default. CSV has the rows that Markdown has, in full precision."""
    words = shlex.split(command)
    first, *_ = PRINTED[command].split()
    whole = call(*words, "--format=md").stdout
    for name in PRINTED[command].split():
        of_table = ["--table", name] if "names" not in PRINTED[command] else []
        text = call(*words, "--format=csv", *of_table).stdout
        rows = [*csv.DictReader(io.StringIO(text))]
        assert rows and all(None not in row and None not in row.values() for row in rows)
        markdown = call(*words, "--format=md", *of_table).stdout.strip()
        assert markdown in whole
        lines = [line for line in markdown.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
        if name == first:
            assert text == call(*words, "--format=csv").stdout


def test_a_table_that_does_not_exist_is_refused_with_those_that_do() -> None:
    errors = refused("run", "--show", "memory", "gpt2_1_5b", "--format=csv", "--table", "stage")
    assert "E119" in errors and "did you mean stages?" in errors
    assert "stages, buffers" in errors


def test_only_csv_and_markdown_have_tables_by_name() -> None:
    with pytest.raises(InputError, match="--table: E908 is for --format csv and md"):
        Output("json", "peaks")


TABLE = Table(
    "times",
    "Times | of two",
    (
        Column("name", "name", TEXT),
        Column("time_s", "time", SECONDS),
        Column("is_long", "", TEXT),
        Column("", "", BAR),
    ),
    [Row(("a|b\nc", 1 / 3, True, 0.5)), Row(("d", Cell(0.1, "-"), None, 1.0), "strong")],
    end=Row(("all", 13 / 30, None, None)),
)


def test_csv_has_full_precision_and_no_text_for_people() -> None:
    """Closing rows, bars and replaced texts are for people."""
    assert csv_text(TABLE) == ('name,time_s,is_long\n"a|b\nc",0.3333333333333333,true\nd,0.1,\n')


def test_markdown_has_what_people_read() -> None:
    """Bars and pictures are left out."""
    view = View([TABLE, remarks(["So be it."]), verdict(True, "fits", doubt="CLOSE")])
    assert markdown_text(view) == (
        "**Times \\| of two**\n\n"
        "| name | time |  |\n| --- | ---: | --- |\n"
        "| a\\|b c | 333.3 ms | True |\n| **d** | **-** |  |\n| all | 433.3 ms |  |\n\n"
        "So be it.\n"
    )
    assert markdown_table(TABLE) in markdown_text(view)


def test_records_of_a_query_are_json_in_csv(tmp_path: pathlib.Path) -> None:
    """As DuckDB returns them: lists, truth values and missing values."""
    folder = tmp_path / "results"
    call("sweep", "interleave", "-o", str(folder))
    sql = "select [1, 2] as list, true as yes, null as missing, 0.1 as tenth from results limit 1"
    text = call("sweep", str(folder), "--query", sql, "--format=csv").stdout
    assert text == 'list,yes,missing,tenth\n"[1, 2]",true,,0.1\n'
    (row,) = json.loads(call("sweep", str(folder), "--query", sql, "--format=json").stdout)["rows"]
    assert row == {"list": [1, 2], "yes": True, "missing": None, "tenth": 0.1}
