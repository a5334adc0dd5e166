"""The command line: its groups and commands."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Annotated

import typer

from simtrain.base.plug_ins import command_sources
from simtrain.base.version import VERSION
from simtrain.commands.app import App, Panels, run_app
from simtrain.commands.printing import emit

_COMMANDS = "simtrain.commands"
# Commands in the order of `simtrain --help`.
_PANELS = {
    "Simulate": {
        "run": f"{_COMMANDS}.run:run",
        "memory": f"{_COMMANDS}.memory:memory",
        "timeline": f"{_COMMANDS}.timeline:timeline",
        "report": f"{_COMMANDS}.report:report",
        "schedule": f"{_COMMANDS}.schedule:schedule_app",
        "cost": f"{_COMMANDS}.cost:cost",
        "goodput": f"{_COMMANDS}.goodput:goodput",
    },
    "Compare": {
        "compare": f"{_COMMANDS}.compare:compare",
        "advise": f"{_COMMANDS}.advise:advise",
        "search": f"{_COMMANDS}.search:search",
        "plan": f"{_COMMANDS}.plan:plan",
        "sweep": f"{_COMMANDS}.sweep:sweep",
        "sweeps": f"{_COMMANDS}.sweep:sweeps",
        "query": f"{_COMMANDS}.sweep:query",
        "plot": f"{_COMMANDS}.plot:plot",
    },
    "Look up": {
        "explain": f"{_COMMANDS}.explain:explain",
        "scenarios": f"{_COMMANDS}.scenarios:scenarios",
        "docs": f"{_COMMANDS}.docs:docs",
        "profile": f"{_COMMANDS}.profile:profile_app",
    },
    "Write": {
        "init": f"{_COMMANDS}.scenarios:init",
        "schema": f"{_COMMANDS}.scenarios:schema",
    },
    "Measure": {"calibrate": "calibrate.app:app"},
}
_ADDED = "Commands of other installed packages"


def _panels() -> Panels:
    """Return the commands by panel, those that other packages add last."""
    added = command_sources(chain.from_iterable(_PANELS.values()))
    return _PANELS | {_ADDED: added}


app = App(
    add_completion=True,
    help="Simulate one training iteration of a large model: how long it takes, where the time goes,"
    " and whether it fits in memory."
    "\n\nStart with: simtrain run table5_22b_present. Each command's --help has an example."
    " From there to a decision: simtrain docs tutorial.",
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
