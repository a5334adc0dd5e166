"""Documents by name: the written pages of docs/, and references made from the program itself.

References are made when they are read, on the site and in `simtrain show`, so none can be stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer

from simtrain.base.resources import document_files

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_COMMANDS = """\
# Commands

The output of `simtrain COMMAND --help --all` for each command.

Exit codes: 0 success, 2 bad input, 3 does not fit in memory, 4 an error above its stated threshold.
"""
_FIELDS = """\
# Fields of a scenario

`simtrain show fields -o every_field.yaml` writes this file: all sections and fields of a scenario,
with their meaning and their defaults. `simtrain show schema` prints the JSON schema that editors
use to complete fields.
"""


def _commands_page() -> str:
    """Return a section for `simtrain` itself, then one for each command."""
    from simtrain.commands.cli import app

    parts = [_COMMANDS, _help_of([])]
    for name, command in _commands(typer.main.get_command(app)).items():
        names = [[name, inner] for inner in _commands(command)] or [[name]]
        parts += map(_help_of, names)
    return "\n".join(parts)


def _commands(group: Any) -> dict[str, Any]:
    return getattr(group, "commands", {})


def _help_of(words: list[str]) -> str:
    from typer.testing import CliRunner

    from simtrain.commands.cli import app

    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    printed = runner.invoke(app, [*words, "--help", "--all"], prog_name="simtrain").output
    lines = [line.rstrip() for line in _ANSI.sub("", printed).split("\n")]
    text = "\n".join(lines).strip("\n")
    return f"## {' '.join(['simtrain', *words])}\n\n```text\n{text}\n```\n"


def _errors_page() -> str:
    from simtrain.render.explanations import errors_document
    from simtrain.scenario.explanations import explanations

    return errors_document(explanations().values())


def _fields_page() -> str:
    from simtrain.scenario.template import full_template

    return f"{_FIELDS}\n```yaml\n{full_template().strip()}\n```\n"


REFERENCES: dict[str, tuple[str, Callable[[], str]]] = {
    "reference/commands": ("Commands", _commands_page),
    "reference/errors": ("Errors", _errors_page),
    "reference/scenario": ("Fields of a scenario", _fields_page),
}
"""The title of each page that is made from the program, and what makes it."""


def document_titles() -> dict[str, str]:
    """Titles of all documents by name, such as "tutorial" and "reference/errors"."""
    titles = {name: title for name, (title, _) in REFERENCES.items()}
    for name, path in document_files().items():
        with path.open(encoding="utf-8") as lines:
            titles[name] = next(lines).removeprefix("# ").rstrip("\n")
    return dict(sorted(titles.items()))


def document_text(name: str) -> str | None:
    """Return a document in Markdown; None if no document has this name.

    Args:
        name: its name, the last part of its name, or "docs/NAME.md".
    """
    wanted, files = name.removeprefix("docs/").removesuffix(".md"), document_files()
    for full_name in (*files, *REFERENCES):
        if wanted in (full_name, full_name.rpartition("/")[2]):
            if full_name in REFERENCES:
                return REFERENCES[full_name][1]()
            return files[full_name].read_text(encoding="utf-8")
    return None
