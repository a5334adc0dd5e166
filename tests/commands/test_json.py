"""Errors in `--format json`: the same as on stderr, with the code and the place."""

import json
import shlex

import pytest

from simtrain.base.plain_data import SCHEMA_VERSION
from tests.helpers.command_line import call


@pytest.mark.parametrize(
    ("command", "code", "place", "exit_code"),
    [
        ("run missing", "E101", None, 2),
        ("run gpt2_1_5b --set batch.micro=0", "E204", "--set batch.micro=0", 2),
        ("run gpt2_1_5b --wrong", "E902", "simtrain run --wrong", 2),
        ("run gpt2_1_5b --set batch.micro=256 --set batch.global=256", "E601", None, 3),
    ],
)
def test_errors_are_json_too(command: str, code: str, place: str | None, exit_code: int) -> None:
    outcome = call(*shlex.split(command), "--format=json")
    plain = call(*shlex.split(command))
    assert (outcome.exit_code, plain.exit_code, plain.stdout) == (exit_code, exit_code, "")
    # The command that works has the option too.
    assert outcome.stderr.splitlines()[0] == plain.stderr.splitlines()[0]
    data = json.loads(outcome.stdout)
    assert (data["schema_version"], data["exit_code"]) == (SCHEMA_VERSION, exit_code)
    (error,) = data["errors"]
    assert (error["code"], error["place"]) == (code, place)
    assert error["message"] in plain.stderr
    assert error.keys() == {"code", "message", "place", "line", "column", "reason", "fix"}


def test_a_result_that_does_not_fit_is_printed_once() -> None:
    """`run --show memory` prints the result; the error follows on stderr."""
    too_much = ("--set", "batch.micro=256", "--set", "batch.global=256")
    outcome = call("run", "--show", "memory", "gpt2_1_5b", *too_much, "--format=json")
    assert outcome.exit_code == 3 and "E601" in outcome.stderr
    assert json.loads(outcome.stdout)["fits"] is False
