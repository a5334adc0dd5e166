"""Names with control characters reach no terminal, picture, page or file."""

import json
import pathlib
import unicodedata
from xml.dom import minidom

import pytest

from simtrain.errors import printable
from simtrain.render.html.elements import element
from simtrain.render.plain_text import csv_text
from simtrain.views.view import TEXT, Column, Row, Table
from tests.helpers.command_line import MACHINE, call

CONTROLS = "\x1b[31m\x00\x01\r\x7f\x9b\u202e\ud800\ufffe"
SCENARIO = """\
name: "a\\e[31mb\\x01\\u202E<&$x_{\\r"
model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 512}
parallelism: {pipeline: 2}
batch: {global: 8, micro: 1}
"""


def is_clean(text: str) -> bool:
    others = {*text} - {"\n", "\t"}
    return not any(unicodedata.category(each) in ("Cc", "Cs") for each in others)


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("scenario.yaml").write_text(SCENARIO, "utf-8")
    return "scenario.yaml"


def test_printable_text_can_be_in_any_xml() -> None:
    every = "".join(map(chr, (*range(0x3000), *range(0xD7FF, 0xE002), *range(0xFFF0, 0x10010))))
    assert len(printable(every)) == len(every) and is_clean(printable(every))
    page = element("p", CONTROLS + "<&", title=CONTROLS)
    assert minidom.parseString(page.encode()).documentElement.getAttribute("title")


def test_comma_separated_values_are_clean() -> None:
    table = Table("ops", "", [Column("op", "op", TEXT)], [Row((CONTROLS,)), Row(([CONTROLS],))])
    assert is_clean(csv_text(table))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run {}", "run {} --show memory", "export {}"])
def test_a_terminal_gets_no_control_characters(command: str, file: str) -> None:
    outcome = call(*command.format(file).split())
    assert outcome.exit_code == 0 and is_clean(outcome.stdout + outcome.stderr)


@pytest.mark.slow
def test_a_page_has_no_control_characters(file: str) -> None:
    assert call("run", file, "-o", "x.html").exit_code == 0
    assert is_clean(pathlib.Path("x.html").read_text("utf-8"))


def test_an_imported_scenario_has_none_and_can_be_read_again(file: str) -> None:
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    config["optimizer"] = {"type": "A\x1b[31mdam\x9b"}
    config["zero_optimization"] = {"stage": 1}
    model = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 1024}
    model |= {"num_attention_heads": 8, "intermediate_size": 1024, "max_position_embeddings": 512}
    pathlib.Path("ds.json").write_text(json.dumps(config), "utf-8")
    pathlib.Path("config.json").write_text(json.dumps(model), "utf-8")
    for option in ((), ("-o", "new.yaml")):
        outcome = call("import", "ds.json", "--gpus", "8", *MACHINE, *option)
        assert outcome.exit_code == 0, outcome.stderr
        assert is_clean(outcome.stdout + outcome.stderr)
    assert is_clean(pathlib.Path("new.yaml").read_text("utf-8"))
    assert call("run", "new.yaml").exit_code == 0
