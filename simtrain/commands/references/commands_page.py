"""The reference page of commands: the output of `--help` for each."""

import re
from typing import Any

import typer
from typer.testing import CliRunner

from simtrain.commands.cli import app

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_COLUMNS = "80"
_HEAD = """\
# Commands

The output of `simtrain COMMAND --help --all` for each command.

Exit codes: 0 success, 2 bad input, 3 does not fit in memory, 4 an error above its stated threshold.
"""


def page() -> str:
    """Return the page in Markdown: a section for `simtrain` itself, then one for each command."""
    parts = [_HEAD, _section("simtrain", [])]
    for name, command in _commands(typer.main.get_command(app)).items():
        names = [[name, inner] for inner in _commands(command)] or [[name]]
        parts += [_section(" ".join(["simtrain", *words]), words) for words in names]
    return "\n".join(parts)


def _commands(group: Any) -> dict[str, Any]:
    return getattr(group, "commands", {})


def _section(title: str, words: list[str]) -> str:
    runner = CliRunner(env={"COLUMNS": _COLUMNS, "NO_COLOR": "1"})
    printed = runner.invoke(app, [*words, "--help", "--all"], prog_name="simtrain").output
    lines = [line.rstrip() for line in _ANSI.sub("", printed).split("\n")]
    text = "\n".join(lines).strip("\n")
    return f"## {title}\n\n```text\n{text}\n```\n"
