"""What commands print."""

import functools
import io
import os
import pathlib
import re
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from unittest.mock import patch

from docs.update.documents import blocks_in, write_files
from docs.update.request import Generator, Request
from simtrain.cli import main

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@functools.cache
def _folder(document: str) -> tempfile.TemporaryDirectory[str]:
    """The working directory of a document's commands, with the files that it tells to write."""
    folder = tempfile.TemporaryDirectory()
    write_files(pathlib.Path(folder.name))
    return folder


@functools.cache
def printed(document: str, command: str) -> str:
    """What a command of a document prints to a terminal of 80 columns."""
    out = io.StringIO()
    program, *words = shlex.split(command)
    assert program == "simtrain", command
    with (
        chdir(_folder(document).name),
        patch.object(sys, "argv", ["simtrain", *words]),
        patch.dict(os.environ, {"COLUMNS": "80"}),
        redirect_stdout(out),
        redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            main()
        except SystemExit as leaving:
            if leaving.code not in (0, 3):
                raise ValueError(f"{command}: {errors.getvalue()}") from leaving
    text = out.getvalue() or errors.getvalue()
    lines = (line.rstrip() for line in _ANSI.sub("", text).split("\n"))
    return "\n".join(lines).strip("\n")


def output(request: Request) -> str:
    """What the commands of the block above print; `output 3` is the first three lines."""
    commands = blocks_in(request.before)[-1].text.splitlines()
    text = "\n".join(printed(request.document, command) for command in commands)
    if request.words:
        text = "\n".join([*text.split("\n")[: int(request.words[0])], "..."])
    return f"```text\n{text}\n```"


GENERATORS: dict[str, Generator] = {"output": output}
