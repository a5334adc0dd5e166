"""`python -m calibrate validate`: a profile beside what it was not fitted on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from calibrate.validation.limits import Limits
from simtrain.errors import SimtrainError

if TYPE_CHECKING:
    from calibrate.validation.profile import Validation

_MISSED = 4
"""Exit code: an error above its stated threshold."""

_DEFAULT = Limits()


def validate(
    profile: Annotated[str, typer.Argument(help="Name or file of a hardware profile.")],
    measurements: Annotated[Path, typer.Argument(help="Folder that `measure` wrote.")],
    layers_mean: Annotated[
        float, typer.Option(help="Largest mean |error| of layers, in percent.")
    ] = 100 * _DEFAULT.layers_mean,
    layers_worst: Annotated[
        float, typer.Option(help="Largest |error| of a layer's pass, in percent.")
    ] = 100 * _DEFAULT.layers_worst,
    iterations_worst: Annotated[
        float, typer.Option(help="Largest |error| of an iteration, in percent.")
    ] = 100 * _DEFAULT.iterations_worst,
    memory_worst: Annotated[
        float, typer.Option(help="Largest |error| of a memory peak, in percent.")
    ] = 100 * _DEFAULT.memory_worst,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in seconds and bytes.")] = (
        False
    ),
    out: Annotated[
        Path | None, typer.Option(help="Folder to write a scatter plot to, PNG and SVG.")
    ] = None,
) -> None:
    """Hold a profile against measured layers and iterations that it was not fitted on.

    Exit code 4: an error is larger than its threshold.

    Example: simtrain calibrate validate my_node.yaml measured --out pictures
    """
    from calibrate.records.file import read_records
    from calibrate.validation.picture import write_validation_picture
    from calibrate.validation.profile import validate_profile
    from simtrain.hardware.load import load_profile
    from simtrain.output_folder import make_picture_folder

    percent = layers_mean, layers_worst, iterations_worst, memory_worst
    try:
        limits = Limits(*(value / 100 for value in percent))
        validation = validate_profile(load_profile(profile), *read_records(measurements), limits)
        if out is not None:
            make_picture_folder(out)
            write_validation_picture(validation, limits, out)
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    _show(validation, as_json=as_json)
    if not validation.ok:
        raise typer.Exit(_MISSED)


def _show(validation: Validation, *, as_json: bool) -> None:
    for warning in validation.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps(validation.to_json(), indent=2))
        return
    from calibrate.validation.page import left_out, part_table, validation_verdict

    console = Console()
    for part in validation.parts:
        console.print(part_table(part))
    console.print(left_out(validation), soft_wrap=True)
    console.print(validation_verdict(validation), soft_wrap=True)
