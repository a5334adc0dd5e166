"""Completion of unfinished command lines, and the lines with which a shell asks for it.

A shell sets _SIMTRAIN_COMPLETE, and passes the words up to the cursor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from simtrain.commands.declare import CliOptions
from simtrain.commands.group import CliGroup
from simtrain.commands.help import GROUP_OPTIONS, HELP
from simtrain.errors import InputError, Location

_FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/simtrain.fish"}
"""The file of the user that each shell reads; the lines that it needs are in completion.SHELL."""


def complete(group: CliGroup, words: Iterable[str]) -> list[str]:
    """Return what the last of these words can become: a command, an option or a value."""
    # Most shells pass "--set=x" as one word, bash passes "--set", "=" and "x".
    parts = (word.split("=", 1) if word[:2] == "--" else [word.removeprefix("=")] for word in words)
    *before, typed = [part for word in parts for part in word] or [""]
    return [
        name for name in _names(group, [*filter(None, before)], typed) if name.startswith(typed)
    ]


def _names(group: CliGroup, before: list[str], typed: str) -> Iterable[str]:
    _, command, _ = group.named_by("", before)
    if isinstance(command, CliGroup):
        return [*command, *GROUP_OPTIONS, *HELP]
    options = CliOptions.of(command).in_order
    named = {name: each for each in options for name in each.names if not each.is_argument}
    option = named.get(before[-1])
    if option and not option.is_flag:
        return option.values
    arguments = (name for each in options if each.is_argument for name in each.values)
    return [*named, *HELP] if typed.startswith("-") else arguments


def teach_shell(option: str, *words: str) -> str:
    """Return the lines for a shell, by default the user's; with --install-completion add them.

    Raises:
        InputError: the shell is none of those that simtrain knows (E904).
    """
    shell = "".join(words[:1]) or Path(os.environ.get("SHELL", "")).name
    if shell not in _FILES or words[1:]:
        place = Location(" ".join(["simtrain", option, *words]))
        fix = f"write one of {', '.join(_FILES)} after {option}"
        raise InputError.of("E904", "names no shell that can be taught", place, fix)
    lines = Path(__file__).with_name(f"completion.{shell}").read_text("utf-8")
    if option == "--show-completion":
        return lines
    file = Path.home() / _FILES[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    # Files of completions have one program each, others are the user's.
    present = file.read_text("utf-8") if file.exists() and file.name.startswith(".") else ""
    if lines not in present:
        file.write_text(f"{present}\n{lines}", "utf-8")
    return f"{file} completes simtrain, from the next {shell} on.\n"
