"""Calls of the command line, in this process or in one of their own."""

import io
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from simtrain.commands import cli
from simtrain.commands.cli import main
from simtrain.commands.group import CliGroup
from simtrain.commands.parser import Parser

ROOT = pathlib.Path(__file__).parents[2]
MACHINE = "--set", "cluster=h100_sxm"
"""Options of a source that does not say its machine."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Output and exit code of a command."""

    exit_code: Any
    stdout: str
    stderr: str


def call(*arguments: str, program: Callable[[], None] = main) -> Outcome:
    """Call `simtrain ARGUMENTS`, or another program, in this process and without colours."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["simtrain", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as leaving,
    ):
        program()
    return Outcome(leaving.value.code, _ANSI.sub("", out.getvalue()), _ANSI.sub("", err.getvalue()))


def refused(*arguments: str) -> str:
    """Return the errors of `simtrain ARGUMENTS`, which must exit with 2 and print nothing else.

    With --format json the errors are on stdout too, as data.
    """
    outcome = call(*arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout == "" or {"json", "--format=json"} & {*arguments}
    return outcome.stderr


def spawn(
    *arguments: str, stdout: int = subprocess.PIPE, folder: pathlib.Path = ROOT, **environment: str
) -> Outcome:
    """Run `python ARGUMENTS` in a new process that starts in `folder`."""
    done = subprocess.run(
        [sys.executable, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        cwd=folder,
        text=True,
        encoding="utf-8",
    )
    return Outcome(done.returncode, done.stdout or "", done.stderr)


def commands(group: CliGroup = cli.commands, path: str = "") -> dict[str, Callable[..., None]]:
    """Return all commands by name; the name of a subcommand starts with its group's."""
    every: dict[str, Callable[..., None]] = {}
    for name, command in group.items():
        is_group = isinstance(command, CliGroup)
        every |= commands(command, f"{path}{name} ") if is_group else {path + name: command}
    return every


def parsed(name: str, *words: str) -> Parser:
    """Return the parser of the words after a command, without parsing them."""
    return Parser(f"simtrain {name}", commands()[name], words)


def option_names(name: str) -> set[str]:
    """Return the names of the options of a command, such as "--set"."""
    return {word for each in parsed(name).options if not each.is_argument for word in each.names}
