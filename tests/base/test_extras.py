"""Commands without optional packages: what works, and errors that name the extra to install."""

import pathlib
import shlex
import sys

import pytest

from tests.helpers.command_line import refused

# A command, the feature that needs packages, these packages, and the extra to install.
NEEDED = [
    ("sweep interleave -o r", "a sweep needs pyarrow", "sweep"),
    ("sweep interleave -o r", "a constraint needs duckdb", "sweep"),
    ("sweep r --query 'select 1'", "a query needs duckdb", "sweep"),
    ("sweep .", "drawing a sweep needs pyarrow and matplotlib", "plot,sweep"),
    ("run gpt2_1_5b --show memory -o r.png", "drawing pictures needs matplotlib", "plot"),
    ("run gpt2_1_5b -o t.svg", "drawing pictures needs matplotlib", "plot"),
    ("reproduce fig7 -o r", "drawing pictures needs matplotlib", "plot"),
]


@pytest.mark.parametrize(("command", "message", "extra"), NEEDED)
def test_a_command_says_what_to_install(
    command: str, message: str, extra: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in message.partition(" needs ")[2].split(" and "):
        monkeypatch.setitem(sys.modules, package, None)
    errors = refused(*shlex.split(command))
    first, second, *_ = errors.splitlines()
    assert first == f"E701 {message}"
    assert second.startswith(f"  fix: pip install 'simtrain[{extra}]'")
    assert not [*tmp_path.iterdir()]
