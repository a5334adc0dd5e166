"""The command line: commands, and exit codes of errors.

Exit codes: 0 success, 2 bad input, 3 does not fit in memory, 4 a threshold was missed.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from typing import Annotated

import typer

from calibrate.app import app as calibrate_app
from simtrain.commands.app import App
from simtrain.commands.compare import compare
from simtrain.commands.cost import cost
from simtrain.commands.explain import explain
from simtrain.commands.explore import explore
from simtrain.commands.importing import import_app
from simtrain.commands.memory import memory
from simtrain.commands.plan import plan
from simtrain.commands.plot import plot
from simtrain.commands.profile import profile_app
from simtrain.commands.report import report
from simtrain.commands.reproduce import reproduce
from simtrain.commands.run import run
from simtrain.commands.scenarios import init, scenarios, schema
from simtrain.commands.schedule import schedule
from simtrain.commands.search import search
from simtrain.commands.shared import emit
from simtrain.commands.sweep import query, sweep, sweeps
from simtrain.commands.timeline import timeline
from simtrain.errors import InputError, SimtrainError
from simtrain.version import VERSION

_LONGEST_NAME = 80
app = App(add_completion=True)
# Groups and commands in the order of `simtrain --help`.
GROUPS = {
    "Simulate": (run, memory, timeline, report, schedule, cost),
    "Compare": (compare, search, plan, sweep, sweeps, query, plot),
    "Look up": (explain, scenarios, reproduce, explore),
    "Write": (init, schema),
}
for title, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=title)(command)
app.add_typer(import_app, name="import", rich_help_panel="Write")
app.add_typer(calibrate_app, name="calibrate", rich_help_panel="Measure")
app.add_typer(profile_app, name="profile", rich_help_panel="Look up")


def _print_version(wanted: bool) -> None:
    if wanted:
        emit(f"simtrain {VERSION}\n")
        raise typer.Exit


@app.callback()
def simtrain(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Simulate one training iteration of a large model: how long it takes, and where time goes.

    Start with: simtrain run table5_22b_present
    """


def main() -> None:
    """Entry point; prints user errors without a traceback."""
    # Print "?" instead of failing if the output's encoding lacks a character.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Commands create many objects and few cycles; by default, collecting takes a sixth of a search.
    gc.set_threshold(50_000)
    # No command multiplies large matrices, and numpy takes 0.05 s longer to start its threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except SimtrainError as error:
        emit(f"{error}\n", sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = f"{str(error.filename)[:_LONGEST_NAME]}..."
            problem = InputError.of("E102", f"cannot be read: {error.strerror}: {name}")
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free space, or redirect the output to another file"
            message = f"the output cannot be written: {error.strerror}"
            problem = InputError.of("E113", message, fix=fix)
            # Python would fail again when it flushes the rest at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            raise
        emit(f"{problem}\n", sys.stderr)
        raise SystemExit(InputError.exit_code) from None
    finally:
        # Skip Python's collection at exit, which takes a fifth of a search. With duckdb it must
        # run: duckdb reports objects that are still alive as leaks.
        if "duckdb" not in sys.modules:
            gc.freeze()


if __name__ == "__main__":
    main()
