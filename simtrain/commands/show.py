"""`simtrain show`: what comes with simtrain, by one name each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from simtrain.base import resources
from simtrain.commands.declare import Argument
from simtrain.commands.group import CliGroup
from simtrain.commands.options import OutOption, refuse
from simtrain.commands.output import Output, show_view
from simtrain.commands.output import show as show_answer
from simtrain.commands.printing import emit, text_width
from simtrain.errors import InputError, did_you_mean

Rows = Iterator[tuple[str, ...]]
_CODE = re.compile(r"[eE]?\d+")
_CODE_OR_COMMENT = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->\n?", re.DOTALL | re.MULTILINE)
"""Comments mark generated figures; in code they are an example."""
_FILES: dict[str, tuple[Callable[[], list[str]], Callable[[str], Path]]] = {
    "scenarios": (resources.list_scenarios, resources.find_scenario),
    "profiles": (resources.list_profiles, resources.find_profile),
    "sweeps": (resources.list_sweeps, resources.find_sweep),
    "stacks": (resources.list_stacks, resources.find_stack),
}
"""Shipped files by their kind: their names, and the file of a name."""
_TEXTS = {
    "template": "a scenario of 20 lines to start from",
    "fields": "a scenario with every field, its meaning and its default",
    "schema": "the JSON schema of scenarios, with which editors complete fields",
}
_LONGEST_NAME = 80


def shipped_names() -> list[str]:
    """Return the names of what ships: for completion, and for guesses."""
    from simtrain.render.explanations import codes

    files = (name for names, _ in _FILES.values() for name in names())
    return [*_lists(), *_TEXTS, *document_titles(), *files, *codes()]


def show(
    name: Annotated[str | None, Argument(complete=shipped_names)] = None,
    out: OutOption = None,
    *,
    output: Output,
) -> None:
    """List and print what comes with simtrain: scenarios, profiles, documents, error codes.

    Args:
        name: what to print: the name of a scenario, profile, sweep, software stack or document, an
            error code, a profile's file, or a list such as scenarios. Default: all lists.
        out: file to write the text to, for a copy to change.

    A profile is checked, and printed with the unit, source and fitted range of each entry: an
    efficiency above 1, a bandwidth above that of its link, NaN and a number without a source are
    errors. With -o, its file is copied.

    For VS Code with its YAML extension, write the schema to scenario.schema.json and begin the
    scenario with this line: # yaml-language-server: $schema=scenario.schema.json

    Example: simtrain show scenarios

    Example: simtrain show template -o my_scenario.yaml

    Example: simtrain show E310
    """
    from simtrain.views.view import names_view

    lists = _lists()
    if name is None or name in lists:
        refuse({"-o": out}, "writes no list", "name what to copy")
        if name is None:
            show_view(output, names_view(("name", "what it lists or prints"), _overview()))
        else:
            columns, rows = lists[name]
            show_view(output, names_view(columns, rows()))
    elif _is_path(name) or (name in resources.list_profiles() and out is None):
        refuse({"-o": out}, "copies what comes with simtrain, not a file")
        from simtrain.views.profile import load_page, profile_view

        page = load_page(name)
        show_answer(output, page, lambda: profile_view(page))
    else:
        refuse(output.written, "is for lists and profiles")
        _print_text(name, out)


def _lists() -> dict[str, tuple[tuple[str, ...], Callable[[], Rows]]]:
    """Return the headings and the rows of each list."""
    return {
        "scenarios": (("scenario", "description"), partial(_described, "scenarios")),
        "profiles": (("profile", "evidence", "description"), _profiles),
        "sweeps": (("sweep", "description"), partial(_described, "sweeps")),
        "stacks": (("stack", "description"), partial(_described, "stacks")),
        "documents": (("name", "title"), _documents),
        "errors": (("code", "meaning"), _errors),
    }


def _overview() -> Rows:
    yield from ((name, f"list of {name}, each to be shown by its name") for name in _lists())
    yield from _TEXTS.items()


def _described(kind: str) -> Rows:
    names, find = _FILES[kind]
    for name in names():
        yield name, resources.line_of(find(name), "description")


def _profiles() -> Rows:
    from simtrain.hardware.evidence import evidence_of
    from simtrain.hardware.load import load_profile

    for name in resources.list_profiles():
        profile = load_profile(name)
        yield name, evidence_of(profile, name).level, profile.description


def _documents() -> Rows:
    yield from document_titles().items()


def _errors() -> Rows:
    from simtrain.render.explanations import explanations

    yield from ((code, each.what) for code, each in explanations().items())


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or (os.path.isfile(name) and not name.endswith(".md"))


def _print_text(name: str, out: Path | None) -> None:
    """Print a text, or write it to a file that does not exist."""
    from simtrain.base.output_folder import write_new

    is_scenario = name in ("template", "fields", *resources.list_scenarios())
    text = _text(name)
    if out is None:
        emit(text)
        return
    write_new(out, text)
    emit(f"Wrote {out}." + f" Run it with: simtrain run {out}" * is_scenario + "\n")


def _text(name: str) -> str:
    """Return the text that a name stands for.

    Raises:
        InputError: it stands for none (E101), or an error has no such code (E115).
    """
    from simtrain.base.input_file import MOST_BYTES_OF_YAML, read_text

    if name in _TEXTS:
        import json

        from simtrain.scenario.template import full_template, scenario_schema, template

        if name == "schema":
            return json.dumps(scenario_schema(), indent=2) + "\n"
        return template() if name == "template" else full_template()
    if _CODE.fullmatch(name.strip()):
        from simtrain.render.explanations import explain, explanation_page

        return explanation_page(explain(name), text_width())
    if document := document_text(name):
        shown = _CODE_OR_COMMENT.sub(lambda part: part[0] * (part[0][0] == "`"), document)
        return re.sub(r"\n{3,}", "\n\n", shown)
    for names, find in _FILES.values():
        if name in names():
            return read_text(find(name), MOST_BYTES_OF_YAML)
    question = did_you_mean(name, [each.rpartition("/")[2] for each in shipped_names()])
    message = f'nothing is named "{name[:_LONGEST_NAME]}"'
    raise InputError.of("E101", message, fix=f"{question}simtrain show lists what there is")


# ---------------------------------------------------------- references made from the program

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
    from simtrain.commands.cli import commands

    return "\n".join([_COMMANDS, *_helps("simtrain", commands)])


def _helps(path: str, command: CliGroup | Callable[..., None]) -> Iterator[str]:
    from simtrain.commands.help import help_of

    yield f"## {path}\n\n```text\n{help_of(path, command, True, 80)}```\n"
    if isinstance(command, CliGroup):
        for name in command:
            yield from _helps(f"{path} {name}", command[name])


def _errors_page() -> str:
    from simtrain.render.explanations import errors_document, explanations

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
    for name, path in resources.document_files().items():
        with path.open(encoding="utf-8") as lines:
            titles[name] = next(lines).removeprefix("# ").rstrip("\n")
    return dict(sorted(titles.items()))


def document_text(name: str) -> str | None:
    """Return a document in Markdown; None if no document has this name.

    Args:
        name: its name, the last part of its name, or "docs/NAME.md".
    """
    wanted, files = name.removeprefix("docs/").removesuffix(".md"), resources.document_files()
    for full_name in (*files, *REFERENCES):
        if wanted in (full_name, full_name.rpartition("/")[2]):
            if full_name in REFERENCES:
                return REFERENCES[full_name][1]()
            return files[full_name].read_text(encoding="utf-8")
    return None
