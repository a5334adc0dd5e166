"""`simtrain import`: a command for each importer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.shared import SetOption, print_or_write
from simtrain.importing.importers.importer import Importer
from simtrain.importing.importers.registry import IMPORTERS

if TYPE_CHECKING:
    from simtrain.scenario import Scenario

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
IgnoreOption = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown", help="Leave out what simtrain does not know, and list it in the file."
    ),
]
_BYTES_PER_PARAMETER, _BYTES_PER_GPU, _FEWEST_GPUS = 18, 40e9, 8
"""Of mixed precision with Adam; half of the memory of a GPU leaves room for activations."""
_USUAL_LENGTH, _USUAL_TOKENS = 8192, 1 << 22
"""Tokens of a sequence and of a batch that models are trained with."""


def _command_of(importer: Importer) -> Callable[..., None]:
    """Return the function of an importer's command."""

    def write_scenario(
        source: str,
        out: OutOption = None,
        overrides: SetOption = None,
        gpus: GpusOption = None,
        ignore_unknown: IgnoreOption = False,
    ) -> None:
        """Convert a source to a scenario."""
        scenario, text = importer.read(
            source, overrides or (), ignore_unknown=ignore_unknown, gpus=gpus
        )
        num_notes = sum(line.startswith("# - ") for line in text.splitlines())
        notes = f"{num_notes} settings are" if num_notes != 1 else "1 setting is"
        is_open = importer.is_model and scenario.num_gpus == 1
        command = _search(scenario, out) if out and is_open else ""
        print_or_write(text, out, f"; {notes} not modelled", command)

    argument = typer.Argument(metavar=importer.metavar, help=importer.argument)
    write_scenario.__annotations__["source"] = Annotated[str, argument]
    write_scenario.__doc__ = importer.text
    return write_scenario


def _search(scenario: Scenario, file: Path) -> str:
    """Return a search of layouts of a model, on GPUs that hold it and with a usual batch."""
    from simtrain.iteration.plan import Plan

    states_bytes = _BYTES_PER_PARAMETER * Plan.of(scenario, _FEWEST_GPUS).num_parameters
    gpus = _FEWEST_GPUS
    while gpus * _BYTES_PER_GPU < states_bytes:
        gpus *= 2
    length = min(scenario.model.seq_length, _USUAL_LENGTH)
    batch = max(_USUAL_TOKENS // length, gpus)
    return (
        f"simtrain search {file} --gpus {gpus} --set model.seq_length={length} "
        f"--set batch.global={batch} --set cluster=h100_sxm"
    )


for _importer in IMPORTERS:
    # With this setting typer does not parse quoted arguments ("--...") as options.
    _settings = {"ignore_unknown_options": True} if _importer.reads_options else {}
    import_app.command(_importer.name, context_settings=_settings)(_command_of(_importer))
