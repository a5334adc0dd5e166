"""Typer application of a group of commands, with `-h` and help wrapped to the terminal."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand


class _Command(TyperCommand):
    """A command that refuses empty arguments.

    An empty path would be the current folder. Users write it with an unset variable of the shell:
    `--out "$FOLDER"`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments. Refuse empty ones."""
        for before, argument in pairwise(["", *args]):
            name, equals, value = argument.partition("=")
            if argument and not (name.startswith("--") and equals and not value):
                continue
            option = name or (before if before.startswith("-") else None)
            message = 'is empty; write a value (for a path, "." is the current folder)'
            raise typer.BadParameter(message, ctx, param_hint=option or "ARGUMENT")
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """A group of commands. Without arguments it prints its help."""

    def __init__(self, *, add_completion: bool = False, help: str | None = None) -> None:
        super().__init__(
            add_completion=add_completion,
            help=help,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode="rich",
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    # `settings` are the parameters of typer, except `help`.
    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """Register a function as a command; its docstring is the help."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            text = unwrapped(getdoc(function) or "")
            return super(App, self).command(name, cls=_Command, help=text, **settings)(function)

        return register


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph; typer wraps them to the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
