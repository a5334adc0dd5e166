"""`simtrain export`: a command for each framework that a scenario can be written for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.declare import options_first
from simtrain.commands.printing import emit
from simtrain.commands.question import UnscaledQuestion
from simtrain.errors import InputError, Location, printable
from simtrain.importing.exporters import EXPORTERS, Exporter

export_app = App(
    help="Write a scenario as a framework reads it, so that what was found can be run.",
)


NearestOption = Annotated[
    bool,
    typer.Option(
        "--nearest",
        help="Change what the framework cannot say of the layout to the nearest that it can. "
        "Comments name the changes.",
    ),
]


def _command_of(exporter: Exporter) -> Callable[..., None]:
    """Return the function of a framework's command."""

    @options_first("scenario out overrides")
    def write_source(
        question: UnscaledQuestion,
        out: Annotated[
            Path | None, typer.Option("--out", help="File to write. Default: print the text.")
        ] = None,
        nearest: NearestOption = False,
    ) -> None:
        """Write a scenario for a framework."""
        from simtrain.base.output_folder import write_new
        from simtrain.studies.evaluation import Evaluator

        # No framework chooses recompute: its answer is written.
        scenario = question.load()
        if scenario.program is not None:
            message = f"the program {scenario.program} is code of its own"
            fix = "run the script from which it was recorded"
            raise InputError.of("E952", message, Location(question.scenario), fix)
        chosen = Evaluator(allow_oom=True).evaluate(scenario)
        text = exporter.write(chosen.scenario, nearest=nearest)
        if out is None:
            emit(text)
            return
        write_new(out, printable(text))
        emit(f"Wrote {out}. Read it back with: simtrain import {exporter.name} {out}\n")

    write_source.__doc__ = inspect.getdoc(exporter)
    return write_source


for _exporter in EXPORTERS.values():
    export_app.command(_exporter.name)(_command_of(_exporter))
