"""The command line: its commands, and how errors end them.

Exit codes: 0 fine, 2 bad input, 3 does not fit in memory, 4 a threshold missed.
"""

from __future__ import annotations

import gc
import io
import os
import sys

import typer

from simtrain.commands.cost import cost
from simtrain.commands.importing import import_app
from simtrain.commands.memory import memory
from simtrain.commands.plot import plot
from simtrain.commands.profile import profile_app
from simtrain.commands.reproduce import reproduce
from simtrain.commands.run import run
from simtrain.commands.scenarios import scenarios
from simtrain.commands.schedule import schedule
from simtrain.commands.search import search
from simtrain.commands.sweep import query, sweep, sweeps
from simtrain.errors import SimtrainError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(profile_app, name="profile")
app.add_typer(import_app, name="import")
for command in (
    *(cost, sweep, sweeps, query, plot, search, run),
    *(memory, reproduce, schedule, scenarios),
):
    app.command()(command)


@app.callback()
def simtrain() -> None:
    """How long does one training iteration of a large model take, and where does the time go?"""


def main() -> None:
    """Entry point: errors that a user can mend are told without a traceback."""
    # A terminal or file of a narrow encoding gets "?" for what it cannot show, and not an error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Commands create many objects and few cycles: by default, a sixth of a search collects garbage.
    gc.set_threshold(50_000)
    # No command multiplies large matrices, and numpy takes 0.05 s longer to start its threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    finally:
        # The process ends here. Python would first search all that is left for cycles, which takes
        # a fifth of a search. duckdb reports its objects as leaks unless that search finds them.
        if "duckdb" not in sys.modules:
            gc.freeze()


if __name__ == "__main__":
    main()
