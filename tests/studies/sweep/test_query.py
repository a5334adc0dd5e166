"""SQL queries of the results of a sweep."""

import json
import pathlib
import re
import shutil
from typing import Any

import pytest

from simtrain.studies.sweep.grid import Sweep
from simtrain.studies.sweep.run import SweepFolder
from tests.helpers.command_line import call, refused
from tests.helpers.sweep_files import NUM_PARTS, rows_of, run

pytestmark = pytest.mark.slow  # each test runs a sweep and starts duckdb


def test_queries_answer_while_the_sweep_runs(sweep: Sweep, tmp_path: pathlib.Path) -> None:
    def look(phase: str, done: int, total: int) -> None:
        if done:
            sql = "select count(*) n from results"
            outcome = call("sweep", str(tmp_path / "out"), "--query", sql, "--format=json")
            rows = json.loads(outcome.stdout)["rows"]
            answers.append((rows, [{"n": len(rows_of(tmp_path / "out"))}]))

    answers: list[tuple[Any, Any]] = []
    run(sweep, tmp_path / "out", on_progress=look)
    assert len(answers) == NUM_PARTS and all(found == expected for found, expected in answers)


def test_an_answer_says_how_many_points_it_lacks(
    whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    sql = "select count(*) n from results"
    assert call("sweep", str(folder), "--query", sql).stderr == ""
    part = SweepFolder(folder).part(1)
    points = json.loads((folder / "sweep.json").read_text("utf-8"))["part_size"]
    part.unlink()
    for option in ((), ("--format=csv",), ("--format=json",)):
        outcome = call("sweep", str(folder), "--query", sql, *option)
        assert outcome.exit_code == 0
        assert f"{points} points of the sweep not simulated yet or deleted" in outcome.stderr
    assert json.loads(outcome.stdout)["num_missing"] == points


def test_answers_are_tables_json_and_csv(whole: pathlib.Path) -> None:
    sql = """select "batch.micro", mfu, 'nan'::double as x, date '2026-01-02' as day
             from results where status = 'ok' order by index limit 1"""
    table, as_json, as_csv = (
        call("sweep", str(whole), "--query", sql, *option)
        for option in ((), ("--format=json",), ("--format=csv",))
    )
    assert {one.exit_code for one in (table, as_json, as_csv)} == {0}
    (row,) = json.loads(as_json.stdout)["rows"]
    mfu = rows_of(whole)[0]["mfu"]
    assert row == {"batch.micro": 1, "mfu": mfu, "x": None, "day": "2026-01-02"}
    assert as_csv.stdout == f"batch.micro,mfu,x,day\n1,{mfu},,2026-01-02\n"
    shown = [word for word in table.stdout.split() if word.strip("─")]
    assert shown == [*row, "1", f"{mfu:.6g}", "-", "2026-01-02"]


@pytest.mark.parametrize(
    ("sql", "excerpt"),
    [
        ("selec", 'E826 the query failed: Parser Error: syntax error at or near "selec"'),
        ("select tensor from results", '"parallelism.tensor"|columns: index, parallelism.tensor'),
        ("select 1 from nothing", "nothing"),
        (" ; ", "it has 0 statements"),
        ("select mfu, mfu from results", "two of its columns have one name"),
        ("select '\udcff'", "E826 the query failed"),
        ("select ?", "E826 the query failed"),
        ("select 1; select 2", "it has 2 statements; write one per call\n  fix: write one select"),
        ("create table t as select 1", "CREATE is not a query; write a statement that returns"),
        ("copy (select 1) to 'x.csv'", "COPY is not a query"),
        ("explain analyze copy (select 1) to 'x.csv'", "Permission Error: .*\n(.*\n)*  fix: write"),
        ("set lock_configuration = false", "SET is not a query"),
        ("select * from read_csv('sweep.json')", "Permission Error: Cannot access file"),
        ("select * from glob('*')", "Permission Error: Cannot access file"),
        ("select * from sql", "Table with name sql does not exist"),
    ],
)
def test_wrong_sql_is_an_error(
    whole: pathlib.Path, sql: str, excerpt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole)
    before = sorted(whole.rglob("*"))
    outcome = call("sweep", ".", "--query", sql)
    assert sorted(whole.rglob("*")) == before
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert re.search(excerpt, outcome.stderr)


def test_folders_without_results_are_errors(sweep: Sweep, tmp_path: pathlib.Path) -> None:
    for expected in ("E820 this folder contains no sweep", "E820 no part is finished yet"):
        errors = refused("sweep", str(tmp_path / "out"), "--query", "select 1")
        assert expected in errors
        SweepFolder(tmp_path / "out").open(sweep.header)
    (tmp_path / "out" / "parts" / "part-000000.parquet").write_bytes(b"PAR1")
    outcome = call("sweep", str(tmp_path / "out"), "--query", "select 1")
    assert outcome.exit_code == 2 and "E826 the query failed" in outcome.stderr
