"""`simtrain import`: a command for each importer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.loading import search_line
from simtrain.commands.shared import SetOption, print_or_write
from simtrain.importing.importers.importer import Importer
from simtrain.importing.importers.registry import IMPORTERS

import_app = App(
    help="Convert a training script, a log or a model's config to a scenario.",
)
OutOption = Annotated[
    Path | None, typer.Option("--out", help="File to write. Default: print the scenario.")
]

GpusOption = Annotated[
    int | None,
    typer.Option("--gpus", min=1, help="Number of GPUs, in place of what the source says."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="config.json of the model, or the script that trains it."),
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", help="The config of the file, if it has several.")
]
IgnoreOption = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown", help="Leave out what simtrain does not know, and list it in the file."
    ),
]


def _command_of(importer: Importer) -> Callable[..., None]:
    """Return the function of an importer's command."""

    def write_scenario(
        source: str,
        model: ModelOption = None,
        config: ConfigOption = None,
        out: OutOption = None,
        overrides: SetOption = None,
        gpus: GpusOption = None,
        ignore_unknown: IgnoreOption = False,
    ) -> None:
        """Convert a source to a scenario."""
        reader = copy(importer)
        reader.model, reader.config = model or "", config or ""
        scenario, text = reader.read(
            source, overrides or (), ignore_unknown=ignore_unknown, gpus=gpus
        )
        num_notes = sum(line.startswith("# - ") for line in text.splitlines())
        notes = f"{num_notes} settings are" if num_notes != 1 else "1 setting is"
        is_open = importer.is_model and scenario.num_gpus == 1
        command = search_line(scenario, str(out)) if out and is_open else ""
        print_or_write(text, out, f"; {notes} not modelled", command)

    argument = typer.Argument(metavar=importer.metavar, help=importer.argument)
    write_scenario.__annotations__["source"] = Annotated[str, argument]
    write_scenario.__doc__ = importer.text
    options = {"model": importer.reads_model, "config": importer.reads_configs}
    signature = inspect.signature(write_scenario, eval_str=True)
    kept = [each for name, each in signature.parameters.items() if options.get(name, True)]
    # typer reads the options of a command from its signature.
    write_scenario.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return write_scenario


for _importer in IMPORTERS.values():
    # With this setting typer does not parse quoted arguments ("--...") as options.
    _settings = {"ignore_unknown_options": True} if _importer.reads_options else {}
    import_app.command(_importer.name, context_settings=_settings)(_command_of(_importer))
