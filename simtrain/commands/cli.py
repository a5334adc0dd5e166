"""The command line: its groups and commands."""

from __future__ import annotations

import os

from simtrain.base.plug_ins import command_sources
from simtrain.base.version import VERSION
from simtrain.commands.app import run_app
from simtrain.commands.group import CliGroup

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


def main() -> None:
    """Entry point of `simtrain`."""
    run_app(commands)
