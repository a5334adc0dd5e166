"""The command line: its groups and commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simtrain.base.plug_ins import command_sources
from simtrain.base.version import VERSION
from simtrain.commands.app import App, run_app
from simtrain.commands.printing import emit

_HOUSE = {
    **{name: f"simtrain.commands.{name}:{name}" for name in ("run", "compare", "search", "cost")},
    **{name: f"simtrain.commands.{name}:{name}" for name in ("sweep", "validate")},
    "show": "simtrain.commands.show:show_shipped",
}
_ORDER = (
    *("run", "compare", "search", "cost", "sweep", "import"),
    *("export", "validate", "calibrate", "reproduce", "show"),
)
"""Commands in the order of `simtrain --help`; those of other packages come last."""


def _sources() -> dict[str, str]:
    """Return the modules and functions of all commands by name."""
    sources = _HOUSE | command_sources(_HOUSE)
    known = {name: sources.pop(name) for name in _ORDER if name in sources}
    return known | sources


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
    sources=_sources,
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
