"""Typer application of a group of commands, with `-h` and help wrapped to the terminal."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from typing import Any

import typer


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
            return super(App, self).command(name, help=text, **settings)(function)

        return register


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph; typer wraps them to the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
