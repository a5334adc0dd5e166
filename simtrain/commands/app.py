"""Applications: groups of commands, with help and errors in the style of simtrain."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from inspect import getdoc
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from simtrain.base.request import without_descriptions
from simtrain.commands.declare import FIRST_OPTIONS, declared
from simtrain.commands.printing import emit, emit_data, text_width
from simtrain.commands.usage import check_words, is_usage_error, unknown_command, usage_error
from simtrain.errors import InputError, SimtrainError

MISSED = 4
"""Exit code if an error is above its threshold, or nothing meets the limits."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_LONGEST_NAME = 80
_ALL = "--all"


class _Explained:
    """Base class of commands and groups that refuse wrong arguments in the words of simtrain."""

    no_args_is_help: bool

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
            formatter.write("\n".join(self._short_help(ctx, text_width())) + "\n")

    def _short_help(self, ctx: Any, width: int) -> Iterator[str]:
        """Yield lines: of each argument and first option the first sentence of its help."""
        first = getattr(self.callback, FIRST_OPTIONS, ())
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        options = [each for each in self.params if each.name in first or not first]
        shown: list[Any] = [*arguments, *(each for each in options if each not in arguments)]
        rows = {", ".join(_names_of(each)): (each.help or "") for each in shown}
        column = max(map(len, rows), default=0) + 4
        summary, *details = (self.help or "").split("\n\n")
        words = [name for each in arguments for name in _names_of(each)]
        yield " ".join(["Usage:", ctx.command_path, *words, "[OPTIONS]"])
        yield ""
        yield textwrap.fill(summary, width)
        yield ""
        for names, text in rows.items():
            sentence = re.split(r"(?<=[^ .]{2})\. ", text)[0].rstrip(".")
            label = f"  {names}".ljust(column)
            yield textwrap.fill(
                sentence, width, initial_indent=label, subsequent_indent=" " * column
            )
        yield ""
        for text in details:
            if text.startswith("Example: "):
                yield textwrap.fill(text, width, subsequent_indent=" " * len("Example: "))
        yield f"All options and details: {ctx.command_path} --help --all"


def _names_of(param: Any) -> list[str]:
    """Return the names of an option, or what the help calls an argument."""
    if param.param_type_name == "option":
        return sorted(param.opts, key=len)
    return [(param.metavar or param.name.upper()).upper()]


class _Group(_Explained, TyperGroup):
    """A group of commands of simtrain; its attributes are those of `App`."""

    default: Callable[[str], str] | None = None
    sources: Callable[[], Mapping[str, str]] | None = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.sources:
            self.commands: Any = _Commands(self.sources())

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands]

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        if self.default and args and args[0] not in self.commands:
            name = self.default(args[0])
            args = [name, *args] if name else args
        return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise unknown_command(ctx, args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


class _Commands(Mapping[str, Any]):
    """Commands by name, each imported and built at its first use: most calls use one."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            self._commands[name] = _built(name, self._sources[name])
        return self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _built(name: str, source: str) -> Any:
    """Import a command or a group from "module:attribute"."""
    module, _, attribute = source.partition(":")
    app = getattr(import_module(module), attribute)
    if isinstance(app, App):
        command: Any = typer.main.get_group(app)
    else:
        function, app = app, App()
        app.command(name)(function)
        command = typer.main.get_command(app)
    command.name = name
    return command


class App(typer.Typer):
    """A group of commands. Without arguments it prints its help.

    Args:
        add_completion: whether it has options that install and show completion.
        help: its help.
        default: returns the command that takes a first word that is no command; "" for none.
        sources: returns commands by name, as "module:function" or "module:app". It is called when
            the application runs, so that its errors are printed like others. Functions that the
            decorator `command` registers need no entry.
    """

    def __init__(
        self,
        *,
        add_completion: bool = False,
        help: str | None = None,
        default: Callable[[str], str] | None = None,
        sources: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        functions = {"default": default, "sources": sources}
        attributes = {name: staticmethod(each) for name, each in functions.items() if each}
        super().__init__(
            cls=type("Group", (_Group,), attributes),
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
            text = unwrapped(without_descriptions(getdoc(function) or ""))
            register_command = super(App, self).command(name, cls=_Command, help=text, **settings)
            register_command(declared(function))
            return function

        return register


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph; typer wraps them to the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def run_app(app: Callable[[], None]) -> None:
    """Run an application; print its users' errors without a traceback.

    Exit codes: 0 success, 2 bad input, 3 does not fit in memory, 4 a threshold was missed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the output's encoding may lack a character
    # Commands create many objects and few cycles; by default, collecting takes a sixth of a search.
    gc.set_threshold(200_000)
    # No command multiplies large matrices, and numpy takes 0.05 s longer to start its threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would look for plugins in the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    try:
        app()
    except (SimtrainError, OSError) as error:
        problem = error if isinstance(error, SimtrainError) else _problem_of_system(error)
        emit(f"{problem}\n", sys.stderr)
        if _wants_json(sys.argv) and isinstance(problem, InputError):
            emit_data(json.dumps(_error_data(problem), indent=2) + "\n")
        raise SystemExit(problem.exit_code) from None
    finally:
        # Skip Python's collection at exit, which takes a fifth of a search. With duckdb it must
        # run: duckdb reports objects that are still alive as leaks.
        if "duckdb" not in sys.modules:
            gc.freeze()


def _wants_json(words: list[str]) -> bool:
    return "--format=json" in words or ("--format", "json") in pairwise(words)


def _error_data(error: InputError) -> dict[str, Any]:
    """Return an error as JSON has it; `place` is a file or a part of the command line."""
    from simtrain.base.plain_data import SCHEMA_VERSION

    errors = [
        {
            "code": problem.code,
            "message": problem.message,
            "place": problem.location and problem.location.file,
            "line": problem.location and problem.location.line,
            "column": problem.location and problem.location.column,
            "reason": problem.reason,
            "fix": problem.fix,
        }
        for problem in error.problems
    ]
    return {"schema_version": SCHEMA_VERSION, "exit_code": error.exit_code, "errors": errors}


def _problem_of_system(error: OSError) -> InputError:
    """Return the user's mistake behind an error of the system; raise the error if it is ours."""
    if error.errno == errno.ENAMETOOLONG:
        name = f"{str(error.filename)[:_LONGEST_NAME]}..."
        return InputError.of("E102", f"cannot be read: {error.strerror}: {name}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # Python would fail again when it flushes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message = f"the output cannot be written: {error.strerror}"
        return InputError.of(
            "E113", message, fix="free space, or redirect the output to another file"
        )
    raise error
