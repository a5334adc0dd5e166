"""Groups of commands for typer, which parses what is not plain, completes words and prints help.

Contexts, parameters and errors are typer's. They are `Any` here: typer has no public names for
their types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from simtrain.commands.declare import CliOption, CliOptions
from simtrain.commands.group import INTERRUPTED, CliGroup
from simtrain.commands.help import group_help, short_help, texts_of
from simtrain.commands.printing import emit, text_width
from simtrain.commands.usage import check_words, is_usage_error, unknown_command, usage_error

_ALL = "--all"
_SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Explained:
    """Base class of commands and groups that refuse wrong arguments in the words of simtrain."""

    no_args_is_help: bool

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            vars(param).pop("process_value", None)
            if ctx.resilient_parsing:
                # Completion reads no values, and typer would import pydantic to convert them.
                param.process_value = lambda ctx, value: value
        return params

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Let typer parse the arguments; complete its errors, and add what it does not refuse."""
        words = [*args]
        make_context = super().make_context  # type: ignore[misc]
        try:
            context = make_context(info_name, args, parent=parent, **extra)
        except Exception as error:
            # Without arguments a group prints its help.
            if not is_usage_error(error) or (self.no_args_is_help and not words):
                raise
            settings = self.context_settings  # type: ignore[attr-defined]
            context = typer.Context(self, info_name=info_name, parent=parent, **settings)  # type: ignore[arg-type]
            raise usage_error(context, words, error) from None
        # Shell completion parses unfinished command lines; a group passes on the words of others.
        if not context.resilient_parsing and not hasattr(self, "commands"):
            check_words(context, words)
        return context


class _Command(_Explained, TyperCommand):
    """A command of simtrain. Its help fits a screen; `--help --all` has the rest."""

    function: Callable[..., None]
    shows_all = False

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        self.shows_all = _ALL in args and bool({"-h", "--help"} & {*args})
        args = [word for word in args if not (self.shows_all and word == _ALL)]
        return super().make_context(info_name, args, parent, **extra)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if self.shows_all:
            super().format_help(ctx, formatter)
        else:
            formatter.write(short_help(ctx.command_path, self.function, text_width()))


class _Group(_Explained, TyperGroup):
    """A group of commands of simtrain."""

    group: CliGroup

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.group]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Build a command at its first use: most calls use one."""
        if cmd_name in self.group and cmd_name not in self.commands:
            command = typer.main.get_command(_typer_of(self.group[cmd_name]))
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(group_help(ctx.command_path, self.group))

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        if args and args[0] not in self.group:
            name = self.group.default(args[0])
            args = [name, *args] if name else args
        return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.group and not ctx.resilient_parsing:
            raise unknown_command(ctx, args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


def typer_app(group: CliGroup) -> typer.Typer:
    """Return a group as an application of typer."""
    app = typer.Typer(
        cls=type("Group", (_Group,), {"group": group}),
        add_completion=bool(group.version),
        help=group.help,
        no_args_is_help=True,
        **_SETTINGS,
    )
    app.callback()(_options if group.version else lambda: None)
    return app


def _print_version(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        emit(f"{context.command.group.version}\n")  # type: ignore[attr-defined]
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
)


def _options(version: Annotated[bool, _VERSION] = False) -> None:
    """Take the options of `simtrain` itself."""


def _typer_of(command: CliGroup | Callable[..., None]) -> typer.Typer:
    if isinstance(command, CliGroup):
        return typer_app(command)
    app = typer.Typer(add_completion=False, **_SETTINGS)
    cls = type("Command", (_Command,), {"function": staticmethod(command)})
    app.command(cls=cls, help="\n\n".join(texts_of(command)))(declared(command))
    return app


def declared(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer takes it: with a parameter per option or argument."""
    parameters = CliOptions.of(function)
    options = [*map(_typed, parameters.in_order)]

    @wraps(function)
    def command(**values: Any) -> None:
        parameters.value(values)

    # typer reads both.
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    return command


def _typed(option: CliOption) -> inspect.Parameter:
    settings = option.mark.settings | {"help": option.help}
    # In `Annotated`, typer takes the first name for a default.
    info = (
        typer.Argument(**settings)
        if option.is_argument
        else typer.Option(..., *option.names, **settings)
    )
    return inspect.Parameter(
        option.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[option.type, info],
    )
