"""The command line: its groups and commands."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from simtrain.base.plug_ins import command_sources
from simtrain.base.version import VERSION
from simtrain.commands.app import App, Panels, run_app
from simtrain.commands.printing import emit

_COMMANDS = "simtrain.commands"
# Commands in the order of `simtrain --help`.
_PANELS = {
    "Commands": {
        "run": f"{_COMMANDS}.run:run",
        "compare": f"{_COMMANDS}.compare:compare",
        "search": f"{_COMMANDS}.search:search",
        "plan": f"{_COMMANDS}.plan:plan",
        "cost": f"{_COMMANDS}.cost:cost",
        "goodput": f"{_COMMANDS}.goodput:goodput",
        "sweep": f"{_COMMANDS}.sweep:sweep",
        "show": f"{_COMMANDS}.show:show_shipped",
        "calibrate": "calibrate.app:app",
    },
}
_ADDED = "Commands of other installed packages"


def _panels() -> Panels:
    """Return the commands by panel, those that other packages add last."""
    added = command_sources(chain.from_iterable(_PANELS.values()))
    return _PANELS | {_ADDED: added}


def _runs(word: str) -> str:
    """Return "run" for a file, or the name of a shipped scenario; "" for another word."""
    from simtrain.base.resources import list_scenarios

    is_file = word.endswith((".yaml", ".yml")) or Path(word).is_file()
    return "run" if is_file or word in list_scenarios() else ""


app = App(
    default=_runs,
    add_completion=True,
    help="Simulate one training iteration of a large model: how long it takes, where the time goes,"
    " and whether it fits in memory."
    "\n\nStart with: simtrain llama3_70b, or your own simtrain train.sbatch."
    " Each command's --help has examples. From there to a decision: simtrain show tutorial.",
    panels=_panels,
)


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
    """Take the options of `simtrain` itself."""


def main() -> None:
    """Entry point of `simtrain`."""
    # By its name also for `python -m simtrain`: completion is installed for the name.
    run_app(partial(app, prog_name="simtrain"))
