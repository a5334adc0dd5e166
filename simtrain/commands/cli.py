"""The command line: its groups and commands."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from calibrate.app import app as calibrate_app
from simtrain.base.version import VERSION
from simtrain.commands.app import App, run_app
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

app = App(
    add_completion=True,
    help="Simulate one training iteration of a large model: how long it takes, where the time goes,"
    " and whether it fits in memory."
    "\n\nStart with: simtrain run table5_22b_present. Each command's --help has an example;"
    " docs/tutorial.md leads from there to a decision.",
)
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
    """Take the options of `simtrain` itself."""


def main() -> None:
    """Entry point of `simtrain`."""
    # By its name also for `python -m simtrain`: completion is installed for the name.
    run_app(partial(app, prog_name="simtrain"))
