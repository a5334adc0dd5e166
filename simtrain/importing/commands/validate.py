"""`simtrain validate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import in_panel
from simtrain.commands.completion import shipped_profiles, shipped_stacks
from simtrain.commands.options import SetOption
from simtrain.commands.output import Output, show
from simtrain.errors import InputError

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS", help="Tables of runs (CSV), or logs of Megatron-LM with their arguments."
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="Hardware profile of the machine that was measured.",
        autocompletion=shipped_profiles,
    ),
]
SoftwareOption = Annotated[
    str | None,
    typer.Option(
        "--software",
        help="Software stack of runs whose table has no column for it. Default: the one with which "
        "the machine's profile was compared first.",
        autocompletion=shipped_stacks,
    ),
]
ErrorsOption = Annotated[
    Path | None,
    typer.Option(
        "--errors-to",
        help="Write the errors by kind of runs. As validated_on/NAME.yaml beside NAME.yaml, they "
        "give the intervals of predictions with that profile.",
        metavar="FILE.yaml",
    ),
]


@in_panel("Commands")
def validate(
    runs: RunsArgument,
    cluster: ClusterOption,
    software: SoftwareOption = None,
    overrides: SetOption = None,
    errors_to: ErrorsOption = None,
    *,
    output: Output,
) -> None:
    """Simulate measured runs and compare times, memory, and what fits.

    Each line of a table is a run: its model, layout, batch, and the measured time or peak. Columns
    have common names, such as num_layers or layers, tp, micro_batch, iteration_s, peak_mem_gb, or
    the names of fields. simtrain show validate lists them. A run that cannot be simulated is
    counted and says why; --csv --table runs lists all. Exits with 2 if no run can be simulated.

    Example: simtrain validate runs.csv --cluster h100_sxm --software megatron_core
    """
    from simtrain.base.output_folder import check_suffix, check_writable, write_text
    from simtrain.commands.progress import progress_bar
    from simtrain.hardware.evidence import read_validated_on
    from simtrain.importing.runs import validate as validate_files
    from simtrain.studies.validation import error_classes, errors_text
    from simtrain.views.validation import validation_view

    if errors_to:
        check_suffix(errors_to, (".yaml", ".yml"), "errors")
        check_writable(errors_to, "the errors", "--errors-to")
    with progress_bar() as show_progress:
        validation = validate_files(
            runs,
            cluster,
            software,
            overrides or (),
            on_progress=lambda done, total: show_progress("simulating", done, total),
        )
    names = ", ".join(file.name for file in runs)
    if errors_to:
        text = errors_text(error_classes(validation, names))
        write_text(errors_to, text, "the errors", "--errors-to", read_validated_on)
    show(output, validation, partial(validation_view, validation), cluster)
    if not validation.num_simulated:
        raise typer.Exit(InputError.exit_code)
