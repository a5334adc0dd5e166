"""Calls the command line in this process, and in one of its own where that is what is tested."""

import io
import os
import pathlib
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from simtrain.cli import main

ROOT = pathlib.Path(__file__).parents[2]
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    exit_code: Any
    stdout: str
    stderr: str


def call(*arguments: str) -> Outcome:
    """What `simtrain ARGUMENTS` does, without colours."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["simtrain", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as leaving,
    ):
        main()
    return Outcome(leaving.value.code, _ANSI.sub("", out.getvalue()), _ANSI.sub("", err.getvalue()))


def refused(*arguments: str) -> str:
    """The errors of `simtrain ARGUMENTS`, which must print nothing else and exit with 2."""
    outcome = call(*arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    return outcome.stderr


def spawn(
    *arguments: str,
    stdout: int = subprocess.PIPE,
    folder: pathlib.Path = ROOT,
    **environment: str,
) -> Outcome:
    """What `python ARGUMENTS` does in a process of its own that starts in `folder`."""
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
