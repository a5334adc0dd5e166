"""Output of commands that documents show."""

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
from docs.update.request import Request, table
from simtrain.commands import printing
from simtrain.commands.cli import main
from simtrain.hardware.upgrades import RESOURCES

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@functools.cache
def folder(document: str) -> tempfile.TemporaryDirectory[str]:
    """Return the working directory of a document's commands, with the files that it shows."""
    folder = tempfile.TemporaryDirectory()
    write_files(pathlib.Path(folder.name))
    return folder


@functools.cache
def printed(document: str, command: str) -> str:
    """Return the output of a document's command on a terminal of 80 columns."""
    out = io.StringIO()
    program, *words = shlex.split(command)
    assert program == "simtrain", command
    with (
        patch.object(printing, "_PLAIN_WIDTH", 80),
        chdir(folder(document).name),
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


@functools.cache
def printed_by_python(document: str, code: str) -> str:
    """Return what a document's Python prints."""
    with chdir(folder(document).name), redirect_stdout(io.StringIO()) as out:
        exec(compile(code, document, "exec"), {"__name__": "__main__"})
    return out.getvalue().strip("\n")


def output(request: Request) -> str:
    """Return the output of the block above; `output 3` its first three lines.

    The block contains commands, or Python. `output "iteration time" MFU` has these facts only, or
    the paragraphs that begin with these words.
    """
    *above, block = blocks_in(request.before)
    for line in (line for one in above for line in one.text.splitlines()):
        if line.startswith("simtrain sweep ") or " -o " in line:  # a later command reads it
            printed(request.document, line)
    if block.language == "python":
        text = printed_by_python(request.document, block.text)
    else:
        commands = block.text.splitlines()
        text = "\n".join(printed(request.document, command) for command in commands)
    lines = text.split("\n")
    if request.words and request.words[0].isdigit():
        text = "\n".join([*lines[: int(request.words[0])], "..."])
    elif request.words:
        text = "\n".join(line for fact in request.words for line in lines_of_fact(lines, fact))
    return f"```text\n{text}\n```"


def lines_of_fact(lines: list[str], name: str) -> list[str]:
    """Return the line that begins with a name, and those that continue its text.

    Continued lines of a fact are indented. Other text continues up to an empty line.
    """
    first = next((place for place, line in enumerate(lines) if line.startswith(name)), None)
    if first is None:
        raise ValueError(f'no line of the output begins with "{name}"')
    continues = "  " if "  " in lines[first] else ""
    last = first + 1
    while last < len(lines) and lines[last] and lines[last].startswith(continues):
        last += 1
    return lines[first:last]


def resources(request: Request) -> str:
    """Return a table of all resources to buy."""
    rows = [[resource.label, resource.text] for resource in RESOURCES.values()]
    return table(["resource", "entries of the profile"], rows)
