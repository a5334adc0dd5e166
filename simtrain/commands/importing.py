"""`simtrain import`: a command for each importer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.shared import SetOption, print_or_write
from simtrain.importing.importers.importer import Importer
from simtrain.importing.importers.registry import IMPORTERS

import_app = App(
    help="Convert a training script, a log or a model's config to a scenario.",
)
OutOption = Annotated[
    Path | None, typer.Option("--out", help="File to write. Default: print the scenario.")
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
        out: OutOption = None,
        overrides: SetOption = None,
        ignore_unknown: IgnoreOption = False,
    ) -> None:
        """Convert a source to a scenario."""
        _, text = importer.read(source, overrides or (), ignore_unknown=ignore_unknown)
        _print_or_write(text, out)

    argument = typer.Argument(metavar=importer.metavar, help=importer.argument)
    write_scenario.__annotations__["source"] = Annotated[str, argument]
    write_scenario.__doc__ = importer.text
    return write_scenario


for _importer in IMPORTERS:
    # With this setting typer does not parse quoted arguments ("--...") as options.
    _settings = {"ignore_unknown_options": True} if _importer.reads_options else {}
    import_app.command(_importer.name, context_settings=_settings)(_command_of(_importer))


def _print_or_write(text: str, out: Path | None) -> None:
    num_notes = sum(line.startswith("# - ") for line in text.splitlines())
    notes = f"{num_notes} settings are" if num_notes != 1 else "1 setting is"
    print_or_write(text, out, f"; {notes} not modelled")
