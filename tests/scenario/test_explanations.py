"""Explanations of all error codes; each example has the error."""

import pathlib
import shlex
import tomllib

import pytest

from simtrain.base.strict_yaml import overlay, parse_document
from simtrain.errors import InputError
from simtrain.render.explanations import Explanation, explanations
from simtrain.scenario import REASONS, Scenario
from simtrain.scenario.section import spell_out_words
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import ROOT, call, refused
from tests.helpers.scenario_texts import MINIMAL

EVERY = explanations()
COMMANDS = [one for one in EVERY.values() if one.is_text and one.example.startswith("simtrain ")]
IN_FILES = [
    one
    for code, one in EVERY.items()
    if one not in COMMANDS and one.is_text and (code in REASONS or "E104" <= code < "E112")
] + [one for code, one in EVERY.items() if code[1] == "2"]


def test_every_code_is_explained_once_and_completely() -> None:
    codes: list[str] = []
    for path in (ROOT / "simtrain" / "render" / "explanations").glob("*.toml"):
        codes += tomllib.loads(path.read_text("utf-8"))
    assert sorted(codes) == list(EVERY)
    for one in EVERY.values():
        assert one.what.endswith(".") and one.why.endswith("."), one.code
        assert one.fix and one.example, one.code


@pytest.mark.parametrize("one", IN_FILES, ids=lambda one: one.code)
def test_an_example_in_a_file_has_the_error_and_no_other(one: Explanation) -> None:
    with pytest.raises(InputError) as caught:
        example = spell_out_words(parse_document(one.example, "example.yaml"))
        base = spell_out_words(parse_document(MINIMAL, "minimal.yaml"))
        simulate(Scenario.from_document(overlay(base, example)))
    assert {problem.code for problem in caught.value.problems} == {one.code}


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.code)
def test_an_example_of_a_command_has_the_error(
    one: Explanation, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = call(*shlex.split(one.example)[1:])
    assert outcome.exit_code in (2, 3)
    assert f"{one.code} " in outcome.stderr


@pytest.mark.parametrize("written", ["E310", "e310", "310"])
def test_a_code_is_explained(written: str) -> None:
    outcome = call("show", written)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    for text in (EVERY["E310"].what, EVERY["E310"].fix, EVERY["E310"].example):
        assert " ".join(text.split()) in " ".join(outcome.stdout.split())


def test_an_unknown_code_is_refused() -> None:
    errors = refused("show", "E999")
    assert errors.startswith('E115 no error has the code "E999"')
