"""The command line: its commands, how a call is answered, and how errors end it."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise, takewhile
from typing import Any

from simtrain.base.plug_ins import command_sources
from simtrain.base.resources import list_scenarios
from simtrain.base.version import VERSION
from simtrain.commands.group import INTERRUPTED, CliGroup
from simtrain.commands.help import ALL, GROUP_OPTIONS, HELP, coloured, help_of
from simtrain.commands.parser import Parser
from simtrain.commands.printing import emit, emit_data, text_width
from simtrain.commands.usage import unknown_command, unknown_option
from simtrain.errors import InputError, SimtrainError

_LONGEST_NAME = 80
_HOUSE = ("run", "compare", "search", "cost", "sweep", "validate", "show")
_ORDER = (*_HOUSE[:5], "import", "export", "validate", "calibrate", "reproduce", "show")
"""Commands in the order of `simtrain --help`; those of other packages come last."""


def _sources() -> dict[str, str]:
    """Return the modules and functions of all commands by name."""
    house = {name: f"simtrain.commands.{name}:{name}" for name in _HOUSE}
    sources = house | command_sources(house)
    return {name: sources.pop(name) for name in _ORDER if name in sources} | sources


def _runs(word: str) -> str:
    """Return "run" for a file, or the name of a shipped scenario; "" for another word."""
    is_file = word.endswith((".yaml", ".yml")) or os.path.isfile(word)
    return "run" if is_file or word in list_scenarios() else ""


commands = CliGroup(
    "Simulate one training iteration of a large model: how long it takes, where the time goes,"
    " and whether it fits in memory."
    "\n\nStart with: simtrain llama3_70b, or your own simtrain train.sbatch."
    " Each command's --help has examples. From there to a decision: simtrain show tutorial.",
    default=_runs,
    sources=_sources,
    version=f"simtrain {VERSION}",
)


def main(group: CliGroup = commands) -> None:
    """Run the command of `sys.argv`; print its users' errors without a traceback.

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
        if "_SIMTRAIN_COMPLETE" in os.environ:  # set by the files completion.*
            from simtrain.commands.completion import complete

            emit("".join(f"{name}\n" for name in complete(group, sys.argv[1:])))
        else:
            _answer(*group.named_by("simtrain", sys.argv[1:]))
        raise SystemExit(0)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except (SimtrainError, OSError) as error:
        problem = error if isinstance(error, SimtrainError) else _problem_of_system(error)
        emit(f"{problem}\n", sys.stderr)
        if _wants_json(sys.argv) and isinstance(problem, InputError):
            import json

            emit_data(json.dumps(_error_data(problem), indent=2) + "\n")
        raise SystemExit(problem.exit_code) from None
    finally:
        # Skip Python's collection at exit, which takes a fifth of a search. With duckdb it must
        # run: duckdb reports objects that are still alive as leaks.
        if "duckdb" not in sys.modules:
            gc.freeze()


def _answer(path: str, command: CliGroup | Callable[..., None], words: Sequence[str]) -> None:
    """Print the help of a group or a command, or what an option of a group prints; or call it."""
    is_group = isinstance(command, CliGroup)
    options = words[:1] if is_group else [*takewhile(lambda word: word != "--", words)]
    if set(HELP) & set(options) or (is_group and not words):
        emit_data(coloured(help_of(path, command, ALL in options, text_width())))
        if not words:
            raise SystemExit(InputError.exit_code)
    elif not isinstance(command, CliGroup):
        Parser(path, command, words).call()
    elif command.version and words[0] == "--version":
        emit(f"{command.version}\n")
    elif command.version and words[0] in GROUP_OPTIONS:
        from simtrain.commands.completion import teach_shell

        emit(teach_shell(*words))
    elif words[0].startswith("-"):
        names = GROUP_OPTIONS if command.version else ()
        raise unknown_option(path, words[0], names, f"{path} {HELP[0]}")
    else:
        raise unknown_command(path, command, words)


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
