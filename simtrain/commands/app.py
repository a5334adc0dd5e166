"""How a command line is answered: plain words at once, others by typer; and how errors end it."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from simtrain.commands.declare import CliOptions
from simtrain.commands.group import INTERRUPTED, CliGroup
from simtrain.commands.help import group_help, short_help
from simtrain.commands.printing import emit, emit_data, text_width
from simtrain.errors import InputError, SimtrainError

_LONGEST_NAME = 80
_PROGRAM = "simtrain"
_COMPLETES = "_SIMTRAIN_COMPLETE"
"""The variable with which a shell asks for completion."""


def run_app(group: CliGroup) -> None:
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
        if _COMPLETES in os.environ or not _is_answered(_PROGRAM, group, sys.argv[1:]):
            from simtrain.commands.typed import typer_app

            typer_app(group)(prog_name=_PROGRAM)
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


def _is_answered(path: str, group: CliGroup, words: Sequence[str]) -> bool:
    """Answer words that typer need not parse, which takes 0.06 s; return whether they were."""
    asks_help = words[-1:] in (["--help"], ["-h"])
    if not words:
        emit(group_help(path, group))
        raise SystemExit(InputError.exit_code)
    if asks_help and len(words) == 1:
        emit(f"{group_help(path, group)}\n")
        return True
    name, *rest = words
    if name not in group and (default := group.default(name)):
        name, rest = default, [*words]
    if name not in group:
        return False
    command = group[name]
    if isinstance(command, CliGroup):
        return _is_answered(f"{path} {name}", command, rest)
    if asks_help and len(rest) == 1:
        emit(short_help(f"{path} {name}", command, text_width()))
        return True
    parameters = CliOptions.of(command)
    values = parameters.read(rest)
    if values is not None:
        parameters.value(values)
    return values is not None


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
