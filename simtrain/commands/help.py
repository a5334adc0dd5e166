"""Help of groups and of commands, on a screen each; `--help --all` of a command has the rest."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from inspect import getdoc
from typing import Any

from simtrain.base.request import without_descriptions
from simtrain.commands.declare import FIRST_OPTIONS, CliOptions
from simtrain.commands.group import CliGroup

_SHOW = "Show completion for the current shell, to copy it or customize the installation."
_VERSION = [
    ("--version", "", "Print the version and exit."),
    ("--install-completion", "", "Install completion for the current shell."),
    ("--show-completion", "", _SHOW),
]
_HELP = ("--help", "-h", "Show this message and exit.")
_ASCII = str.maketrans("╭╮╰╯─│", "++++-|")
_LEAST_WIDTH = 20


def texts_of(function: Callable[..., Any]) -> list[str]:
    """Return the paragraphs of a command's help, each as one line."""
    paragraphs = without_descriptions(getdoc(function) or "").split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


def short_help(path: str, function: Callable[..., None], width: int) -> str:
    """Return lines: of each argument and first option the first sentence of its help."""
    every = CliOptions.of(function).in_order
    first = getattr(function, FIRST_OPTIONS, ())
    arguments = [each for each in every if each.is_argument]
    options = [each for each in every if not each.is_argument]
    shown = [*arguments, *(each for each in options if each.key in first or not first)]
    rows = {", ".join(each.labels): each.help for each in shown}
    column = max(map(len, rows), default=0) + 4
    summary, *details = texts_of(function)
    words = [path, *(label for each in arguments for label in each.labels), "[OPTIONS]"]
    lines = [f"Usage: {' '.join(words)}", "", textwrap.fill(summary, width), ""]
    for label, text in rows.items():
        sentence = re.split(r"(?<=[^ .]{2})\. ", text)[0].rstrip(".")
        begin, indent = f"  {label}".ljust(column), " " * column
        lines.append(textwrap.fill(sentence, width, initial_indent=begin, subsequent_indent=indent))
    lines.append("")
    for text in details:
        if text.startswith("Example: "):
            lines.append(textwrap.fill(text, width, subsequent_indent=" " * len("Example: ")))
    return "\n".join([*lines, f"All options and details: {path} --help --all", ""])


def group_help(path: str, group: CliGroup) -> str:
    """Return the options and the commands of a group, each with the first paragraph of its help."""
    width = max(shutil.get_terminal_size().columns, 2 * _LEAST_WIDTH)
    texts = [f"Usage: {path} [OPTIONS] COMMAND [ARGS]...", "", *group.help.split("\n"), ""]
    lines = [f" {line}" for text in texts for line in _wrapped(text, width - 2)]
    options = [*(_VERSION if group.version else ()), _HELP]
    column = max(len(name) for name, _, _ in options) + 2
    rows = [(f"{name:{column}}{short:8}<bool>  ", text) for name, short, text in options]
    column = max(map(len, group)) + 2
    commands = [(name.ljust(column), _summary(group[name])) for name in group]
    boxes = [*_boxed("Options", rows, width), *_boxed("Commands", commands, width)]
    text = "\n".join([*(line.ljust(width) for line in ("", *lines)), *boxes, ""])
    has_boxes = (sys.stdout.encoding or "utf").lower().startswith("utf")
    return text if has_boxes else text.translate(_ASCII)


def _summary(command: CliGroup | Callable[..., None]) -> str:
    return command.help if isinstance(command, CliGroup) else texts_of(command)[0]


def _boxed(title: str, rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Return a box with a name and a wrapped text in each row."""
    inside = width - 4
    lines = [f"╭─ {title} ".ljust(width - 1, "─") + "╮"]
    for label, text in rows:
        first, *others = _wrapped(text, inside - len(label))
        lines += [f"│ {label + first:{inside}} │"]
        lines += [f"│ {' ' * len(label) + line:{inside}} │" for line in others]
    return [*lines, "╰" + "─" * (width - 2) + "╯"]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, _LEAST_WIDTH), break_on_hyphens=False) or [""]
