"""Commands without optional packages: what works, and errors that name the extra to install."""

import json
import pathlib
import shlex
import sys

import pytest

from simtrain.base.extras import EXTRA_OF, require
from simtrain.errors import InputError
from tests.helpers.command_line import ROOT, refused, spawn

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
CORE = [
    "--help",
    "run gpt2_1_5b",
    "run gpt2_1_5b --show memory",
    "cost gpt2_1_5b --tokens 1T",
    "run gpt2_1_5b --show schedule",
    "show scenarios",
    "show profiles",
    "import config.json --set cluster=h100_sxm",
]
# Python finds none of the packages in the first argument, as on macOS and Windows. Then the
# commands run.
RUN_WITHOUT = """
import contextlib, io, os, shlex, sys

vars(os).pop("sched_getaffinity", None)
missing, *commands = sys.argv[1:]
sys.modules |= dict.fromkeys(missing.split(","))
from simtrain.commands import cli
for command in commands:
    sys.argv[1:] = shlex.split(command)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code, command
"""


@pytest.mark.parametrize(("command", "message", "extra"), NEEDED)
def test_a_command_says_what_to_install(
    command: str,
    message: str,
    extra: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in message.partition(" needs ")[2].split(" and "):
        monkeypatch.setitem(sys.modules, package, None)
    errors = refused(*shlex.split(command))
    first, second, *_ = errors.splitlines()
    assert first == f"E701 {message}"
    assert second.startswith(f"  fix: pip install 'simtrain[{extra}]'")
    assert not [*tmp_path.iterdir()]


def test_an_error_names_all_missing_packages_and_an_alternative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require("this", "numpy")
    for package in ("torch", "pandas"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError) as caught:
        require("this", "torch", "numpy", "pandas", instead=", or nothing")
    fix = "pip install 'simtrain[measure]' pandas, or nothing"
    assert str(caught.value) == f"E701 this needs torch and pandas\n  fix: {fix}"


@pytest.mark.ci
@pytest.mark.slow
def test_most_commands_need_no_optional_package(tmp_path: pathlib.Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 4, "n_embd": 512, "n_head": 8, "n_positions": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 50257}))
    missing = ",".join([*EXTRA_OF, "pandas", "fcntl", "msvcrt"])
    done = spawn("-c", RUN_WITHOUT, missing, *CORE, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert (done.exit_code, done.stderr) == (0, "")
