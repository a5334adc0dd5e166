"""Laws of every study: one list of columns in all formats, an option and a text for each field."""

import csv
import dataclasses
import functools
import inspect
import io
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import simtrain
from simtrain.base.request import described_in
from simtrain.render.html.view import view_html
from simtrain.render.plain_text import csv_text, markdown_table
from simtrain.studies.requests import (
    ComparisonRequest,
    CostRequest,
    DrawRequest,
    SweepRequest,
    ValidationRequest,
)
from simtrain.studies.search.request import SearchRequest
from simtrain.studies.variation import draw
from simtrain.views.view import View
from tests.helpers import command_line
from tests.helpers.command_line import ROOT, call
from tests.helpers.outsider import Outsider
from tests.render.html.pages import parsed

OF_PEOPLE = {"letter", "scenario", "mean_s", "p95_s", "slower", "fits", "rank", "split", "remark"}
"""Columns that help people read a table; all others are keys of JSON, with its values."""
OF_PYTHON = {
    *("scenario", "scenarios", "base", "interrupted", "on_progress", "only_best", "refines"),
    *("evaluator", "anchors"),
}
"""Fields that a command fills in by itself; `scenario` and `base` are its argument."""
REQUESTS = {
    "compare": ComparisonRequest,
    "cost": CostRequest,
    "run": DrawRequest,
    "search": SearchRequest,
    "sweep": SweepRequest,
    "validate": ValidationRequest,
}
HOLD = ["recompute", "memory.zero_stage", "overlap"]


@functools.cache
def answers() -> dict[str, Any]:
    """Return answers of Python by the words of their commands."""
    base, other, small = map(
        simtrain.load_scenario, ("table5_22b_present", "table5_22b_full", "gpt2_1_5b")
    )
    cost = functools.partial(simtrain.cost, base, "1B")
    held = "".join(f" --hold {name}" for name in HOLD)
    return {
        "run table5_22b_present": simtrain.run(base),
        "compare table5_22b_present": simtrain.compare(base),
        "compare table5_22b_present table5_22b_full": simtrain.compare(base, other),
        "compare table5_22b_present --schedules": simtrain.compare(base, schedules=True),
        "cost table5_22b_present --tokens 1B": cost(),
        "cost table5_22b_present --tokens 1B --goodput 1": cost(goodput=1.0),
        f"search gpt2_1_5b --gpus 2{held}": simtrain.search(small, 2, hold=HOLD, refines=True),
        "search gpt2_1_5b --gpus 1,2 --tokens 1B": simtrain.search(small, (1, 2), tokens="1B"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("words", [*answers()])
def test_an_answer_is_what_its_command_prints(words: str) -> None:
    answer = answers()[words]
    assert answer.to_json() == call(*words.split(), "--format", "json").stdout
    if words != "run table5_22b_present":
        table, *_ = answer.view().tables.values()
        assert csv_text(table) == call(*words.split(), "--format", "csv").stdout


@pytest.mark.parametrize("words", [*answers()][1:])
def test_a_table_has_one_list_of_columns_in_all_formats(words: str) -> None:
    view: View = answers()[words].view()
    assert view.tables and view.headline
    for table in view.tables.values():
        names = [column.name for column in table.columns if column.name]
        in_html = parsed(str(view_html(View([table])))).of("th")
        assert [about["data-name"] for about, _ in in_html if "data-name" in about] == names * (
            any(column.heading for column in table.columns)
        )
        headings = [column.heading for column in table.columns if not column.kind.is_bar]
        head, *_ = re.findall(r"^\| (.*) \|\n\| -", markdown_table(table), re.MULTILINE)
        assert head.split(" | ") == [" ".join(each.replace("-\n", "").split()) for each in headings]
        heading, *_ = csv.reader(io.StringIO(csv_text(table)))
        assert all(heading == [*record] for record in table.records())
        assert table.data is not None or heading == names


@pytest.mark.parametrize("words", [*answers()][1:])
def test_the_rows_of_csv_are_values_of_json(words: str) -> None:
    answer = answers()[words]
    data = json.loads(answer.to_json())
    assert data.pop("made_with")
    known = {*values_in(data)}
    for record in answer.records():
        for name, value in record.items():
            if name not in OF_PEOPLE and not isinstance(value, list | dict):
                assert (re.sub("^time_interval_s_|^price_interval_", "", name), value) in known


def values_in(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of all values, null for all that a section without a value has."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from values_in(value, name)
        if key == "fit":
            yield "fit", data["state"]
            yield "probability_of_fit", data["probability"]
    elif isinstance(data, list):
        for value in data:
            yield from values_in(value, key)
    else:
        yield key, data
        yield "recompute" if key == "strategy" else key, data


@pytest.mark.parametrize(("command", "asked"), REQUESTS.items())
def test_every_field_of_a_request_is_described_and_an_option(command: str, asked: type) -> None:
    described = described_in(inspect.getdoc(asked) or "")
    options = {option.key: option for option in command_line.parsed(command).options}
    for field in dataclasses.fields(asked):
        assert described[field.name]
        if field.name not in OF_PYTHON:
            option = options["source" if field.name == "sweep" else field.name]
            assert option.help or option.mark.metavar, field.name


def test_the_progress_of_a_phase_begins_at_0_and_stays_below_its_total() -> None:
    base, reports = simtrain.load_scenario("gpt2_1_5b"), list[tuple[Any, ...]]()
    simtrain.cost(base, "1B", draws=3, on_progress=lambda *report: reports.append(report))
    draw(base, on_progress=lambda *report: reports.append(report))
    assert not any({phase: done for phase, done, _ in reversed(reports)}.values())
    assert all(0 <= done < total for _, done, total in reports)


@pytest.mark.slow
def test_the_study_of_the_documents_is_a_command(tmp_path: pathlib.Path) -> None:
    text = (ROOT / "docs/extend.md").read_text("utf-8")
    (study,) = re.findall(r"<!-- own study -->\n```python\n(.*?)```", text, re.DOTALL)
    place = {"commands": {"sizes": "study:sizes"}}
    outsider = Outsider.install(tmp_path, {"study.py": study}, place)
    words = ("sizes", "gpt2_1_5b", "--doublings", "1")
    rows = json.loads(outsider.call(*words, "--format=json"))["sizes"]
    printed = csv.DictReader(io.StringIO(outsider.call(*words, "--format=csv")))
    assert [*printed] == [{name: json.dumps(row[name]) for name in row} for row in rows]
    assert all(name.replace("_", " ") in outsider.call(*words) for name in rows[0])
