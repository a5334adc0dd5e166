"""`simtrain show reference/json` describes what commands print with --json."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from simtrain.base.plain_data import SCHEMA_VERSION
from simtrain.commands.references.json_page import keys_of, outputs
from tests.helpers.command_line import call

PRINTED = {
    "run": "run gpt2_1_5b",
    "run --show ops": "run gpt2_1_5b --show ops",
    "run --show memory": "run gpt2_1_5b --show memory",
    "cost": "cost gpt2_1_5b --tokens 1B",
    "compare": "compare table5_22b_full table5_22b_present",
    "run --show sources": "run gpt2_1_5b --show sources --figure mfu",
    "compare --schedules": "compare table5_22b_present --schedules",
    "search": "search gpt2_1_5b --gpus 1,2 --top 2",
    "plan": "plan gpt2_1_5b --tokens 1B --gpus 1,2 --days 30",
    "show PROFILE": "show trn1",
    "reproduce table4, table5, dp530b": "reproduce table4",
    "reproduce of other targets": "reproduce fig1",
}
ADDED = {"schema_version", "made_with"}


def undescribed(cls: type, data: dict[str, Any], place: str) -> Iterator[str]:
    """Yield the keys that the page lacks, and those that it has and the data have not."""
    keys = {key.name: key for key in keys_of(cls)}
    more = data.keys() - keys.keys()
    if more and "..." not in keys:
        yield f"{place}: not described: {sorted(more)}"
    expected = {name for name, key in keys.items() if not key.is_optional}
    if missing := expected - data.keys() - {"..."}:
        yield f"{place}: not printed: {sorted(missing)}"
    for name, key in keys.items():
        if key.classes and name in data:
            for inner in objects(data[name], is_by_name=key.type_text.startswith("object: ")):
                yield from undescribed(key.classes[0], inner, f"{place}/{name}")


def objects(value: Any, *, is_by_name: bool) -> list[dict[str, Any]]:
    """Return the objects of a value: itself, or those in a list or by name."""
    if is_by_name or isinstance(value, list):
        return [*(value.values() if is_by_name else value)]
    return [] if value is None else [value]


@pytest.mark.parametrize("name", PRINTED)
def test_the_page_describes_every_key_that_is_printed(name: str) -> None:
    data = json.loads(call(*shlex.split(PRINTED[name]), "--json").stdout)
    assert data["schema_version"] == SCHEMA_VERSION
    data = {key: value for key, value in data.items() if key not in ADDED}
    assert [*undescribed(outputs()[name], data, name)] == []


def test_every_key_has_a_meaning() -> None:
    waiting, done = [*outputs().values()], set[type]()
    while waiting:
        cls = waiting.pop()
        if cls not in done:
            done.add(cls)
            assert [key.name for key in keys_of(cls) if not key.meaning] == [], cls
            waiting += [inner for key in keys_of(cls) for inner in key.classes]


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
    outcome = call(*shlex.split(command), "--json")
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
    outcome = call("run", "--show", "memory", "gpt2_1_5b", *too_much, "--json")
    assert outcome.exit_code == 3 and "E601" in outcome.stderr
    assert json.loads(outcome.stdout)["fits"] is False
