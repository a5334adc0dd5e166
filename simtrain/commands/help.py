"""Help of groups and of commands, on a screen each; `--help --all` of a command has the rest."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from inspect import getdoc
from typing import Any

from simtrain.base.request import without_descriptions
from simtrain.commands.declare import FIRST_OPTIONS, CliOption, CliOptions
from simtrain.commands.group import CliGroup
from simtrain.commands.printing import has_colours

HELP, ALL = ("--help", "-h"), "--all"
GROUP_OPTIONS = {
    "--version": "Print the version and exit.",
    "--install-completion": "Install completion for your shell, or for the one that follows.",
    "--show-completion": "Print what --install-completion adds to a file of the shell.",
}
_EXAMPLE = "Example: "
_VALUES = {bool: "", str: "TEXT", int: "N", float: "X"}
_NAME = re.compile(r"^(?:  \S+(?: \S+)*|Usage:|Example:)", re.MULTILINE)


def help_of(path: str, command: CliGroup | Callable[..., None], is_whole: bool, width: int) -> str:
    """Return the help of a group or a command.

    Args:
        path: the words that name it.
        command: the group, or what the command calls.
        is_whole: with all options and paragraphs; otherwise the first sentence on each argument
            and first option, and the examples.
        width: columns of a page.
    """
    texts = texts_of(command)
    if isinstance(command, CliGroup):
        others = GROUP_OPTIONS if command.version else {}
        rows = {name: texts_of(command[name])[0] for name in command}
        usage = f"Usage: {path} COMMAND [OPTIONS]"
        return _page(width, usage, *texts, rows, others | {"-h, --help": "Print this and exit."})
    options, first = CliOptions.of(command).in_order, getattr(command, FIRST_OPTIONS, ())
    arguments = [each.label + "..." * each.is_list for each in options if each.is_argument]
    usage = " ".join(["Usage:", path, *arguments, "[OPTIONS]"])
    if is_whole:
        return _page(width, usage, *texts, dict(map(_row, options)))
    shown = (each for each in options if each.is_argument or each.key in first or not first)
    rows = {each.label: re.split(r"(?<=[^ .]{2})\. ", each.help)[0].rstrip(".") for each in shown}
    examples = [text for text in texts if text.startswith(_EXAMPLE)]
    end = "\n".join([*examples, f"All options and details: {path} {HELP[0]} {ALL}"])
    return _page(width, usage, texts[0], rows, end)


def texts_of(command: CliGroup | Callable[..., Any]) -> list[str]:
    """Return the paragraphs of the help of a group or a command, each as one line."""
    text = command.help if isinstance(command, CliGroup) else getdoc(command) or ""
    return [" ".join(each.split()) for each in without_descriptions(text).split("\n\n")]


def first_example(path: str, function: Callable[..., Any]) -> str:
    """Return a fix: the first example of a command, or how its help is printed."""
    examples = [text for text in texts_of(function) if text.startswith(_EXAMPLE)]
    return f"for example: {examples[0].removeprefix(_EXAMPLE)}" if examples else f"{path} --help"


def _row(option: CliOption) -> tuple[str, str]:
    """Return an option with its value; and what it means, with choices, range and default."""
    default, choices = option.default, ", ".join(option.choices)
    facts = ["required"] * option.is_required + [f"one of {choices}"] * bool(choices)
    facts += [option.range] * bool(option.range)
    if default and type(default) in (str, int, float) and not option.mark.parse:
        facts.append(f"default {default}")
    value = option.mark.metavar or ("WORD" if choices else _VALUES.get(option.type, "PATH"))
    label = option.label if option.is_argument else f"{option.label} {value}".rstrip()
    return label, f"{option.help} ({'; '.join(facts)})" if facts else option.help


def _page(width: int, *parts: str | Mapping[str, str]) -> str:
    """Return texts, and tables of names and texts, with an empty line between them."""
    return "\n\n".join("\n".join(_lines(part, width)) for part in parts) + "\n"


def _lines(part: str | Mapping[str, str], width: int) -> Iterator[str]:
    if isinstance(part, str):
        rows = [(line, len(_EXAMPLE) * line.startswith(_EXAMPLE)) for line in part.split("\n")]
    else:
        column = max(map(len, part)) + 4
        rows = [(f"  {name}".ljust(column) + text, column) for name, text in part.items()]
    for line, indent in rows:
        yield textwrap.fill(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)


def coloured(page: str) -> str:
    """Return a page with coloured names, if stdout shows colours."""
    return _NAME.sub("\x1b[36m\\g<0>\x1b[0m", page) if has_colours() else page
